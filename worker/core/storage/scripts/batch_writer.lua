-- @include guard ledger accounting leases
-- Writes chosen evaluations into batches and the account, for every script that includes it. It reads their KEYS, ARGV and
-- plan, which worker/core/selection/evaluations.py builds:
--
-- KEYS[2] leases           sorted set, batch id -> due time in ms; no TTL
-- KEYS[3] waiting          hash, judge model -> bytes of unfinished batches; no TTL
-- KEYS[4] account:<day>    hash of counts; the caller sets its TTL
-- KEYS[5] account:all      hash of counts; no TTL
-- KEYS[6] dead             hash, evaluation id -> letter; read only: a dead letter was chosen before
-- KEYS[7] evaluations      first part of the ledger's keys, see ledger.lua
-- ARGV[#ARGV]              the ledger's fields of all evaluations; a plan names each by its first byte
-- plan.batches             and by their index KEYS batch:<id>, ready:<judge model>
--
-- The caller has written each batch:<id> as it is if all of it is chosen, with a TTL that this script removes: texts that
-- pass through Lua are hashed and copied, which cost more than all else. An evaluation names where in its batch the item
-- of its trace and its own text begin, in bytes after the head, and the bytes of that text.
local plan = cmsgpack.unpack(ARGV[1])
local now = now_ms()
local feedback, chosen_by_batch, looked_up = {}, {}, {}
local any_dead = redis.call('HLEN', KEYS[6]) > 0

-- Returns an error if Redis would refuse a write of the plan, else nil; `own_writes` are the caller's.
local function guard_plan(own_writes)
  local writes = {
    {KEYS[5], 'hash', 'HINCRBY'}, {KEYS[2], 'zset', 'ZADD'}, {KEYS[3], 'hash', 'HINCRBY', 'HGETALL'},
    {KEYS[4], 'hash', 'HINCRBY', 'EXPIRE'}, {KEYS[7], false, 'HSET', 'EXPIRE'},
  }
  local models, guarded = {}, {}
  for index, batch in ipairs(plan.batches) do
    if index == 1 then writes[#writes + 1] = {KEYS[batch.key], false, 'SET', 'GET', 'STRLEN', 'TTL', 'PERSIST', 'DEL'} end
    if not guarded[batch.ready] then
      guarded[batch.ready] = true
      writes[#writes + 1] = {KEYS[batch.ready], 'zset', 'ZADD'}
      models[#models + 1] = batch.judge_model
    end
  end
  for _, write in ipairs(own_writes) do writes[#writes + 1] = write end
  return guard(writes) or guard_counters(KEYS[3], models)
end

local function finish_feedback(outcome, amount)
  if amount == 0 then return end
  feedback[outcome] = (feedback[outcome] or 0) + amount
  count('feedback:' .. outcome, amount)
end

-- Looks evaluations up before the first effect: `state` is their state in the ledger, '' for none.
local function look_up(evaluations)
  looked_up[#looked_up + 1] = evaluations
  for _, evaluation in ipairs(evaluations) do
    evaluation.field = ARGV[#ARGV]:sub(evaluation.field, evaluation.field + 15)
    local state, place = find_evaluation(KEYS[7], evaluation.period, evaluation.field, now / 1000, plan.ledger_ttl_s)
    if not state and any_dead and redis.call('HEXISTS', KEYS[6], evaluation.id) == 1 then state = CHOSEN end
    evaluation.state, evaluation.place = state or '', place
  end
end

-- Returns an error if a batch of which something is new is not as the caller wrote it, else nil. If it has no TTL, this
-- call is repeated after its reply was lost, and nothing of the batch is chosen a second time.
local function guard_batches()
  for _, evaluations in ipairs(looked_up) do
    for _, evaluation in ipairs(evaluations) do
      local batch = plan.batches[evaluation.batch]
      if evaluation.state == '' and batch.is_linked == nil then
        batch.is_linked = redis.call('TTL', KEYS[batch.key]) == -1
        if not batch.is_linked and redis.call('STRLEN', KEYS[batch.key]) ~= batch.size then
          return refusal('the key ', KEYS[batch.key], ' was removed before its batch was chosen; it is written again')
        end
      end
    end
  end
end

-- Chooses the evaluations of a trace that were not chosen before, and returns their number.
local chosen_fields = {}
local function choose(evaluations)
  local amount = 0
  for _, evaluation in ipairs(evaluations) do
    local index = evaluation.batch
    if evaluation.state == '' and not chosen_fields[evaluation.field] and not plan.batches[index].is_linked then
      chosen_fields[evaluation.field] = true
      write_evaluation(evaluation.place, evaluation.field, CHOSEN, plan.ledger_ttl_s)
      evaluation.is_chosen = true
      chosen_by_batch[index] = (chosen_by_batch[index] or 0) + 1
      amount = amount + 1
    end
  end
  count('chosen', amount)
  return amount
end

-- Writes a batch again with what was chosen of it.
local function rewrite(index, batch)
  local body, items, item, begin, is_open = redis.call('GET', KEYS[batch.key]), {}, -1, 0, false
  for _, evaluations in ipairs(looked_up) do
    for _, evaluation in ipairs(evaluations) do
      if evaluation.batch == index then
        if evaluation.item ~= item then item, begin, is_open = evaluation.item, evaluation.text, false end
        if evaluation.is_chosen then
          local text = body:sub(batch.head + evaluation.text + 1, batch.head + evaluation.text + evaluation.size)
          if is_open then
            items[#items] = items[#items] .. ',' .. text
          else
            items[#items + 1], is_open = body:sub(batch.head + item + 1, batch.head + begin) .. text, true
          end
        end
      end
    end
  end
  redis.call('SET', KEYS[batch.key], body:sub(1, batch.head) .. table.concat(items, ']},') .. ']}]}')
end

-- Makes the batches ready of which something was chosen, and returns their ids; removes the others.
local function write_batches()
  local due, batch_ids = now + plan.ready_ms, {}
  for index, batch in ipairs(plan.batches) do
    local key, chosen = KEYS[batch.key], chosen_by_batch[index]
    if chosen then
      if chosen == batch.filled then redis.call('PERSIST', key) else rewrite(index, batch) end
      link_batch({batch = key, leases = KEYS[2], ready = KEYS[batch.ready], waiting = KEYS[3]}, batch, due)
      batch_ids[#batch_ids + 1] = batch.id
    elseif redis.call('TTL', key) >= 0 then
      redis.call('DEL', key)
    end
  end
  return batch_ids
end

-- An empty table would be encoded as an object, so what is empty is left out.
local function filled(list)
  return next(list) and list or nil
end
