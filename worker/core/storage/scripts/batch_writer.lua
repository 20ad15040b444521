-- @include guard ledger accounting leases
-- Writes chosen evaluations into batches and the account, for every script that includes it. It reads their KEYS, ARGV and
-- plan, which worker/core/selection/batch_writer.py builds:
--
-- KEYS[2] leases           sorted set, batch id -> due time in ms; no TTL
-- KEYS[3] waiting          hash, judge model -> bytes of unfinished batches; no TTL
-- KEYS[4] account:<day>    hash of counts; the caller sets its TTL
-- KEYS[5] account:all      hash of counts; no TTL
-- KEYS[6] dead             hash, evaluation id -> letter; read only: a dead letter was chosen before
-- KEYS[7] evaluations      first part of the ledger's keys, see ledger.lua
-- ARGV[#ARGV]              the ledger's fields of all evaluations; a plan names each by its first byte
-- plan.batches             and by their index KEYS batch:<id>, ready:<judge model>, and payloads in ARGV; an evaluation
--                          has a payload of its own if its judge needs less of the trace
local plan = cmsgpack.unpack(ARGV[1])
local now = now_ms()
local feedback, parts_by_batch = {}, {}
local any_dead = redis.call('HLEN', KEYS[6]) > 0

-- Returns an error if Redis would refuse a write of the plan, else nil; `own_writes` are the caller's.
local function guard_plan(own_writes)
  local writes = {
    {KEYS[5], 'hash', 'HINCRBY'}, {KEYS[2], 'zset', 'ZADD'}, {KEYS[3], 'hash', 'HINCRBY', 'HGETALL'},
    {KEYS[4], 'hash', 'HINCRBY', 'EXPIRE'}, {KEYS[7], false, 'HSET', 'EXPIRE'},
  }
  local models, guarded = {}, {}
  for index, batch in ipairs(plan.batches) do
    if index == 1 then writes[#writes + 1] = {KEYS[batch.key], false, 'SETRANGE'} end
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
  for _, evaluation in ipairs(evaluations) do
    evaluation.field = ARGV[#ARGV]:sub(evaluation.field, evaluation.field + 15)
    local state, place = find_evaluation(KEYS[7], evaluation.period, evaluation.field, now / 1000, plan.ledger_ttl_s)
    if not state and any_dead and redis.call('HEXISTS', KEYS[6], evaluation.id) == 1 then state = CHOSEN end
    evaluation.state, evaluation.place = state or '', place
  end
end

-- Puts the evaluations of a trace that were not chosen before into their batches, and returns their number.
local chosen_fields = {}
local function choose(payload, evaluations)
  local texts_by_batch, amount = {}, 0
  for _, evaluation in ipairs(evaluations) do
    if evaluation.state == '' and not chosen_fields[evaluation.field] then
      chosen_fields[evaluation.field] = true
      write_evaluation(evaluation.place, evaluation.field, CHOSEN, plan.ledger_ttl_s)
      local texts = texts_by_batch[evaluation.batch] or {payload = evaluation.payload or payload}
      texts[#texts + 1] = evaluation.text
      texts_by_batch[evaluation.batch] = texts
      amount = amount + 1
    end
  end
  for batch, texts in pairs(texts_by_batch) do
    parts_by_batch[batch] = parts_by_batch[batch] or {plan.batches[batch].head}
    add_trace(parts_by_batch[batch], ARGV[texts.payload], texts)
  end
  count('chosen', amount)
  return amount
end

-- Writes the batches that are not empty, and returns their ids.
local function write_batches()
  local due, batch_ids = now + plan.ready_ms, {}
  for index, batch in ipairs(plan.batches) do
    if parts_by_batch[index] then
      local keys = {batch = KEYS[batch.key], leases = KEYS[2], ready = KEYS[batch.ready], waiting = KEYS[3]}
      write_batch(keys, batch, parts_by_batch[index], due, ']}')
      batch_ids[#batch_ids + 1] = batch.id
    end
  end
  return batch_ids
end

-- An empty table would be encoded as an object, so what is empty is left out.
local function filled(list)
  return next(list) and list or nil
end
