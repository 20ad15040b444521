-- Deal with late feedback whose traces were sought: what the rules ask for goes into batches, and the feedback is
-- gathered no more, in one step. Only feedback that is still gathered takes effect: a call that is repeated, or a pass
-- that another worker makes at the same time, changes nothing.
--
-- KEYS[1] traces           stream, group ARGV.group; no TTL; only looked at
-- KEYS[2] leases           sorted set, batch id -> due time in ms; no TTL
-- KEYS[3] waiting          hash, judge model -> bytes of unfinished batches; no TTL
-- KEYS[4] account:<day>    hash of counts; TTL ARGV.account_ttl_s
-- KEYS[5] account:all      hash of counts; no TTL
-- KEYS[6] feedback:due     sorted set, feedback as JSON -> time of its pass in ms; TTL set by ingest
-- KEYS[7..]                batch:<id> string, no TTL · chosen:<id> string, TTL ARGV.chosen_ttl_s
--                          named by their index in the plan
-- ARGV[1] the plan, as msgpack; ARGV[2..] payloads of traces, named by their index in the plan
-- Returns how much feedback ended under which outcome, and the batches made.
local plan = cmsgpack.unpack(ARGV[1])
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local counts, outcomes = {}, {}

local function count(name, amount)
  if amount ~= 0 then counts[name] = (counts[name] or 0) + amount end
end

local function finish(outcome, amount)
  if amount == 0 then return end
  outcomes[outcome] = (outcomes[outcome] or 0) + amount
  count('feedback:' .. outcome, amount)
end

local function before(left, right)
  local a, b = {left:match('(%d+)-(%d+)')}, {right:match('(%d+)-(%d+)')}
  a[1], a[2], b[1], b[2] = tonumber(a[1]), tonumber(a[2]), tonumber(b[1]), tonumber(b[2])
  return a[1] < b[1] or (a[1] == b[1] and a[2] < b[2])
end

local function last_delivered()
  if redis.call('EXISTS', KEYS[1]) == 0 then return nil end
  for _, group in ipairs(redis.call('XINFO', 'GROUPS', KEYS[1])) do
    local state = {}
    for place = 1, #group, 2 do state[group[place]] = group[place + 1] end
    if state['name'] == plan.group then return state['last-delivered-id'] end
  end
  return nil
end

local delivered = last_delivered()

-- Whether ingest is done with all of these entries. Pulled in before, a trace that its rate would have chosen were a
-- duplicate there, and missing in the quality series.
local function settled(publications)
  for _, one in ipairs(publications) do
    if not delivered or before(delivered, one.id) then return false end
    if #redis.call('XPENDING', KEYS[1], plan.group, one.id, one.id, 1) > 0 then return false end
  end
  return true
end

local items = {}

-- Put what was not chosen before into its batches: how many evaluations there are, and how many of them are new.
-- The batches are those of choose.lua.
local function choose(publication)
  local fresh, amount = {}, 0
  for _, evaluation in ipairs(publication.evaluations) do
    if redis.call('SET', KEYS[evaluation.chosen], '1', 'NX', 'EX', plan.chosen_ttl_s) then
      local of_batch = fresh[evaluation.batch] or {}
      of_batch[#of_batch + 1] = evaluation.text
      fresh[evaluation.batch] = of_batch
      amount = amount + 1
    end
  end
  for batch, texts in pairs(fresh) do
    local of_batch = items[batch] or {}
    of_batch[#of_batch + 1] = '{"trace":' .. ARGV[publication.payload] .. ',"evaluations":['
      .. table.concat(texts, ',') .. ']}'
    items[batch] = of_batch
  end
  return #publication.evaluations, amount
end

for _, trace in ipairs(plan.traces) do
  local gathered = {}
  for _, member in ipairs(trace.members) do
    if redis.call('ZSCORE', KEYS[6], member) then gathered[#gathered + 1] = member end
  end
  if #gathered == 0 then
    -- Dealt with before.
  elseif not settled(trace.publications) then
    for _, member in ipairs(gathered) do redis.call('ZADD', KEYS[6], 'XX', now + plan.wait_ms, member) end
  else
    local asked, new = 0, 0
    for _, publication in ipairs(trace.publications) do
      local evaluations, fresh = choose(publication)
      asked, new = asked + evaluations, new + fresh
    end
    for _, member in ipairs(gathered) do redis.call('ZREM', KEYS[6], member) end
    count('chosen', new)
    -- Of several complaints about one trace the first has pulled it in.
    local first = new > 0 and 1 or 0
    finish('pulled', first)
    local rest = #trace.publications == 0 and 'not_found' or asked == 0 and 'no_rule' or 'already_judged'
    finish(rest, #gathered - first)
  end
end

local due = now + plan.first_wait_ms
local made = {}
for place, batch in ipairs(plan.batches) do
  if items[place] then
    local payload = batch.head .. table.concat(items[place], ',') .. ']}'
    redis.call('SET', KEYS[batch.key], payload)
    redis.call('ZADD', KEYS[2], due, batch.id)
    redis.call('HINCRBY', KEYS[3], batch.judge_model, #payload)
    made[#made + 1] = batch.id
  end
end

for name, amount in pairs(counts) do
  redis.call('HINCRBY', KEYS[4], name, amount)
  redis.call('HINCRBY', KEYS[5], name, amount)
end
if next(counts) then redis.call('EXPIRE', KEYS[4], plan.account_ttl_s) end

-- An empty table would be encoded as an object, so what is empty is left out.
return cjson.encode({outcomes = next(outcomes) and outcomes or nil, made = next(made) and made or nil})
