-- Records the ends of evaluations, and looks up their states.

-- @script record
-- @include dead_letters leases
-- Finishes evaluations: each is written once to the ledger, and only then to the outbox and the accounting. A dead letter
-- whose verdict comes after all is removed. What is to be judged a second time is chosen in the same step.
--
-- KEYS[1] verdicts         stream, one group per exporter; capped by ARGV[1]
-- KEYS[2] account:<day> · KEYS[3] account:all, see accounting.lua
-- KEYS[4] dead · KEYS[5] dead:due · KEYS[6] dead:retries · KEYS[7] dead:traces · KEYS[8] dead:refs
-- KEYS[9] evaluations      prefix of the ledger's keys, see ledger.lua
-- KEYS[10] scores          prefix of scores:<evaluation id>, string, scores of a panel's member as JSON; TTL ARGV[2]
-- KEYS[11] batch           prefix of batch:<id>, string; no TTL
-- KEYS[12] leases · KEYS[13] waiting · KEYS[14] prefix of ready:<judge model>, see leases.lua
-- ARGV[1] cap of the outbox in entries · ARGV[2] TTL of the ledger in s · ARGV[3] when a ready batch is due again, in ms
-- ARGV[4..] per evaluation: id, field in the ledger, period, verdict as JSON, outcome, reason or '', scores or '', the
--           batch that held it or '', and its follow-ups as msgpack or '': {id, field as hex digits, period, its batch,
--           the batch's creation time in ms, judge model, the batch as JSON}
-- Returns 1 for each evaluation that was new, else 0.
local keys = letter_keys(4)
local refused = guard({
  {KEYS[1], 'stream', 'XADD'}, {KEYS[2], 'hash', 'HINCRBY'}, {KEYS[3], 'hash', 'HINCRBY'},
  {KEYS[9], false, 'HSET', 'EXPIRE'}, {KEYS[10], false, 'SET'}, {KEYS[11], false, 'SET', 'STRLEN'}, {KEYS[12], 'zset', 'ZADD'},
  {KEYS[13], 'hash', 'HINCRBY'}, {KEYS[14], false, 'ZADD'}, letter_writes(keys),
})
if refused then return refused end

local ttl_s, now, any_dead = tonumber(ARGV[2]), now_ms(), redis.call('HLEN', keys.dead) > 0
local fresh, new, seen, letters = {}, {}, {}, {}
local follow_ups, models = {}, {}

-- Follow-ups of a verdict that were not chosen before: a replay may have judged the same trace twice.
local function choose_follow_ups(packed)
  for _, follow_up in ipairs(cmsgpack.unpack(packed)) do
    local id, hex, period, batch, made_at_ms, judge_model, payload = unpack(follow_up)
    local field = hex:gsub('%x%x', function(digits) return string.char(tonumber(digits, 16)) end)
    local state, place = find_evaluation(KEYS[9], period, field, now / 1000, ttl_s)
    if not state and not seen[field] then
      seen[field] = true
      models[#models + 1] = judge_model
      follow_ups[#follow_ups + 1] = {
        field = field, place = place, payload = payload,
        batch = {id = batch, made_at_ms = made_at_ms, judge_model = judge_model},
      }
      count('chosen', 1)
    end
  end
end

for first = 4, #ARGV, 9 do
  local id, field, period, verdict, outcome, reason, scores, batch, packed = unpack(ARGV, first, first + 8)
  local state, place = find_in(KEYS[9], period, field)
  local is_new = not seen[field] and (not state or state == CHOSEN)
  fresh[#fresh + 1] = is_new and 1 or 0
  if is_new then
    seen[field] = true
    local letter = any_dead and redis.call('HGET', keys.dead, id)
    new[#new + 1] = {id = id, field = field, place = place, verdict = verdict, outcome = outcome, scores = scores, letter = letter}
    if letter then letters[#letters + 1] = letter end
    count_lost_choice(state, letter, batch ~= '' and KEYS[11] .. ':' .. batch)
    count(outcome, 1)
    if reason ~= '' then count(outcome .. ':' .. reason, 1) end
    count('outbox', 1)
    if letter then count_removed_letter(letter) end
    if packed ~= '' then choose_follow_ups(packed) end
  end
end
refused = guard_account(KEYS[2], KEYS[3]) or guard_letters(keys, letters) or guard_counters(KEYS[13], models)
for _, model in ipairs(models) do refused = refused or guard({{KEYS[14] .. model, 'zset', 'ZADD'}}) end
if refused then return refused end

for _, result in ipairs(new) do
  write_evaluation(result.place, result.field, ENDED[result.outcome], ttl_s)
  if result.scores ~= '' then redis.call('SET', KEYS[10] .. ':' .. result.id, result.scores, 'EX', ttl_s) end
  redis.call('XADD', KEYS[1], 'MAXLEN', '~', ARGV[1], '*', 'v', '1', 'j', result.verdict)
  if result.letter then erase_letter(keys, result.id, result.letter) end
end
for _, follow_up in ipairs(follow_ups) do
  write_evaluation(follow_up.place, follow_up.field, CHOSEN, ttl_s)
  local batch, key = follow_up.batch, KEYS[11] .. ':' .. follow_up.batch.id
  redis.call('SET', key, follow_up.payload)
  local keys = {batch = key, leases = KEYS[12], ready = KEYS[14] .. batch.judge_model, waiting = KEYS[13]}
  link_batch(keys, batch, now + ARGV[3])
end
write_account(KEYS[2], KEYS[3])
return fresh

-- @script outcomes
-- @include ledger
-- Looks up evaluations in the ledger, among the dead letters, and the kept scores of panels' members. Only reads.
--
-- KEYS[1] evaluations     prefix of the ledger's keys, see ledger.lua
-- KEYS[2] scores          prefix of scores:<evaluation id>, string; TTL set by record
-- KEYS[3] dead · KEYS[4] dead:retries
-- ARGV    per evaluation its id, its field in the ledger, and its period
-- Returns per evaluation three texts: its state in the ledger or ''; for a dead letter 'dead', or the batch of its retry
-- if one is under way, else ''; scores as JSON or ''.
local any_dead = redis.call('HLEN', KEYS[3]) > 0
local answers = {}
for index = 1, #ARGV, 3 do
  local id = ARGV[index]
  local state = find_in(KEYS[1], ARGV[index + 2], ARGV[index + 1])
  local scores = state and state ~= CHOSEN and redis.call('GET', KEYS[2] .. ':' .. id)
  local dead = ''
  if any_dead and redis.call('HEXISTS', KEYS[3], id) == 1 then
    dead = (redis.call('HGET', KEYS[4], id) or ''):match('^%d+ (.+)$') or 'dead'
  end
  answers[#answers + 1] = state or ''
  answers[#answers + 1] = dead
  answers[#answers + 1] = scores or ''
end
return answers
