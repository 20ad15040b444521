-- How chosen work and late feedback come into the books and batches. It stands before choose.lua, pull.lua and
-- replay.lua, behind counts.lua and batches.lua, and has their KEYS, ARGV and plan:
--
-- KEYS[2] leases           sorted set, batch id -> due time in ms; no TTL
-- KEYS[3] waiting          hash, judge model -> bytes of unfinished batches; no TTL
-- KEYS[4] account:<day>    hash of counts; its TTL is for the caller to set
-- KEYS[5] account:all      hash of counts; no TTL
-- plan.batches, and by their index KEYS batch:<id>, ready:<judge model>, chosen:<id> and ARGV with payloads; the trace
-- of an evaluation has a payload of its own where less of it is needed
local plan = cmsgpack.unpack(ARGV[1])
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local feedback, items = {}, {}

local function finish_feedback(outcome, amount)
  if amount == 0 then return end
  feedback[outcome] = (feedback[outcome] or 0) + amount
  count('feedback:' .. outcome, amount)
end

-- Put the evaluations of a trace that were not chosen before into their batches: how many they are.
local function choose(payload, evaluations)
  local fresh, amount = {}, 0
  for _, evaluation in ipairs(evaluations) do
    if redis.call('SET', KEYS[evaluation.chosen], '1', 'NX', 'EX', plan.chosen_ttl_s) then
      local of_batch = fresh[evaluation.batch] or {payload = evaluation.payload or payload}
      of_batch[#of_batch + 1] = evaluation.text
      fresh[evaluation.batch] = of_batch
      amount = amount + 1
    end
  end
  for batch, texts in pairs(fresh) do
    local of_batch = items[batch] or {}
    local trace = ARGV[texts.payload]
    of_batch[#of_batch + 1] = '{"trace":' .. trace .. ',"evaluations":[' .. table.concat(texts, ',') .. ']}'
    items[batch] = of_batch
  end
  count('chosen', amount)
  return amount
end

-- Write the batches that hold something: their ids.
local function write_batches()
  local due, made = now + plan.ready_ms, {}
  for place, batch in ipairs(plan.batches) do
    if items[place] then
      local payload = batch.head .. table.concat(items[place], ',') .. ']}'
      local keys = {batch = KEYS[batch.key], leases = KEYS[2], ready = KEYS[batch.ready], waiting = KEYS[3]}
      write_batch(keys, batch, payload, due)
      made[#made + 1] = batch.id
    end
  end
  return made
end

-- An empty table would be encoded as an object, so what is empty is left out.
local function filled(list)
  return next(list) and list or nil
end
