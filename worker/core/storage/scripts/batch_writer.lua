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
--                          has a payload of its own where its judge needs less of the trace
local plan = cmsgpack.unpack(ARGV[1])
local now = now_ms()
local feedback, items = {}, {}
local any_dead = redis.call('HLEN', KEYS[6]) > 0

-- Return an error where Redis would refuse a write of the plan, else nil; `more` are the caller's own keys.
local function guard_plan(more)
  local writes = {
    {KEYS[5], 'hash', 'HINCRBY'}, {KEYS[2], 'zset', 'ZADD'}, {KEYS[3], 'hash', 'HINCRBY', 'HGETALL'},
    {KEYS[4], 'hash', 'HINCRBY', 'EXPIRE'}, {KEYS[7], false, 'HSET', 'EXPIRE'},
  }
  local models, known = {}, {}
  for place, batch in ipairs(plan.batches) do
    if place == 1 then writes[#writes + 1] = {KEYS[batch.key], false, 'SETRANGE'} end
    if not known[batch.ready] then
      known[batch.ready] = true
      writes[#writes + 1] = {KEYS[batch.ready], 'zset', 'ZADD'}
      models[#models + 1] = batch.judge_model
    end
  end
  for _, write in ipairs(more) do writes[#writes + 1] = write end
  return guard(writes) or guard_counters(KEYS[3], models)
end

local function finish_feedback(outcome, amount)
  if amount == 0 then return end
  feedback[outcome] = (feedback[outcome] or 0) + amount
  count('feedback:' .. outcome, amount)
end

-- Look evaluations up before the first effect: `state` is that of the ledger, '' for none.
local function look_up(evaluations)
  for _, evaluation in ipairs(evaluations) do
    evaluation.field = ARGV[#ARGV]:sub(evaluation.field, evaluation.field + 15)
    local state, part, is_new = find_evaluation(KEYS[7], evaluation.period, evaluation.field, now / 1000, plan.ledger_ttl_s)
    if not state and any_dead and redis.call('HEXISTS', KEYS[6], evaluation.id) == 1 then state = CHOSEN end
    evaluation.state, evaluation.part, evaluation.is_new = state or '', part, is_new
  end
end

-- Put the evaluations of a trace that were not chosen before into their batches, and return their number.
local taken = {}
local function choose(payload, evaluations)
  local fresh, amount = {}, 0
  for _, evaluation in ipairs(evaluations) do
    if evaluation.state == '' and not taken[evaluation.field] then
      taken[evaluation.field] = true
      write_evaluation(evaluation.part, evaluation.field, CHOSEN, plan.ledger_ttl_s, evaluation.is_new)
      local of_batch = fresh[evaluation.batch] or {payload = evaluation.payload or payload}
      of_batch[#of_batch + 1] = evaluation.text
      fresh[evaluation.batch] = of_batch
      amount = amount + 1
    end
  end
  for batch, texts in pairs(fresh) do
    items[batch] = items[batch] or {plan.batches[batch].head}
    add_trace(items[batch], ARGV[texts.payload], texts)
  end
  count('chosen', amount)
  return amount
end

-- Write the batches that are not empty, and return their ids.
local function write_batches()
  local due, made = now + plan.ready_ms, {}
  for place, batch in ipairs(plan.batches) do
    if items[place] then
      local keys = {batch = KEYS[batch.key], leases = KEYS[2], ready = KEYS[batch.ready], waiting = KEYS[3]}
      write_batch(keys, batch, items[place], due, ']}')
      made[#made + 1] = batch.id
    end
  end
  return made
end

-- An empty table would be encoded as an object, so what is empty is left out.
local function filled(list)
  return next(list) and list or nil
end
