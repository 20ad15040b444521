-- @include guard ledger accounting
-- Dead letters: evaluations given up. Keys of the scripts below, besides those of the included files:
--
-- dead           hash, evaluation id -> dead letter as JSON, which names its trace; no TTL
-- dead:due       sorted set, evaluation id -> time given up in ms; no TTL
-- dead:retries   hash, evaluation id -> number of automatic retries, batch of the current retry; no TTL
-- dead:traces    hash, name of a trace -> its payload, once for all of its letters; no TTL
-- dead:refs      hash, name of a trace -> number of its letters; `bytes`: size of all letters and traces; no TTL
-- dead:again:<judge model>   sorted set, evaluation id -> earliest automatic retry in ms; TTL set by dead_add
local function letter_keys(first)
  local dead, due, retries, traces, refs = unpack(KEYS, first, first + 4)
  return {dead = dead, due = due, retries = retries, traces = traces, refs = refs}
end

-- The last match is the letter's own reason, because only numbers and a text, whose quotes are escaped, follow it.
local function reason_of(letter)
  return letter:match('.*"reason":"([a-z_]+)"')
end

-- The first match is that of the letter's evaluation, because nothing before it has such a field.
local function period_of(letter)
  return letter:match('"period":"(d?%d+)"') or '0'
end

-- The name of its trace. Within a text the quotes of the pattern would be escaped.
local function trace_of(letter)
  return letter:match('"trace":"(%x+)"')
end

local function letter_bytes(keys)
  return tonumber(redis.call('HGET', keys.refs, 'bytes') or 0)
end

-- Returns the writes that guard() checks before letters are added or removed.
local function letter_writes(keys)
  return {keys.dead, 'hash', 'HSET', 'HDEL', 'HGET'}, {keys.due, 'zset', 'ZADD', 'ZREM'},
    {keys.retries, 'hash', 'HSET', 'HDEL', 'HGET'}, {keys.traces, 'hash', 'HSET', 'HDEL', 'HSTRLEN'},
    {keys.refs, 'hash', 'HINCRBY', 'HDEL', 'DEL'}
end

-- Returns an error if the counts of traces and bytes are unusable, else nil.
local function guard_letters(keys, letters, names)
  local fields = {'bytes'}
  for _, letter in ipairs(letters) do fields[#fields + 1] = trace_of(letter) end
  for _, name in ipairs(names or {}) do fields[#fields + 1] = name end
  return guard_counters(keys.refs, fields)
end

-- Releases the trace of a letter; it is deleted with its last letter.
local function release_trace(keys, letter)
  local name = trace_of(letter)
  if not name or redis.call('HINCRBY', keys.refs, name, -1) > 0 then return end
  local size = redis.call('HSTRLEN', keys.traces, name)
  redis.call('HDEL', keys.traces, name)
  redis.call('HDEL', keys.refs, name)
  redis.call('HINCRBY', keys.refs, 'bytes', -size)
end

-- Writes a letter, replacing the old one of this evaluation.
local function put_letter(keys, id, letter, name, trace)
  local old = redis.call('HGET', keys.dead, id)
  local added = #letter - (old and #old or 0)
  if redis.call('HINCRBY', keys.refs, name, 1) == 1 then
    redis.call('HSET', keys.traces, name, trace)
    added = added + #trace
  end
  redis.call('HSET', keys.dead, id, letter)
  redis.call('HINCRBY', keys.refs, 'bytes', added)
  if old then release_trace(keys, old) end
end

local function count_removed_letter(letter)
  count('dead', -1)
  local reason = reason_of(letter)
  if reason then count('dead:' .. reason, -1) end
end

local function erase_letter(keys, id, letter)
  redis.call('HDEL', keys.dead, id)
  redis.call('ZREM', keys.due, id)
  redis.call('HDEL', keys.retries, id)
  redis.call('HINCRBY', keys.refs, 'bytes', -#letter)
  release_trace(keys, letter)
  if redis.call('HLEN', keys.dead) == 0 then redis.call('DEL', keys.refs) end
end

-- Redis may have lost the choice of an evaluation that a worker holds. It ends all the same, so it is counted as chosen
-- again. If only the ledger's TTL has passed, the batch still exists, and nothing was lost.
local function count_lost_choice(state, letter, batch)
  if not state and not letter and batch and redis.call('EXISTS', batch) == 0 then count('chosen', 1) end
end

-- @script dead_add
-- Gives evaluations up: each becomes one dead letter with an outbox entry, and nothing is written to the ledger. If the
-- evaluation is a letter already, because its retry has failed, the letter is only renewed.
--
-- KEYS[1] verdicts         stream; capped by ARGV[1]
-- KEYS[2] account:<day> · KEYS[3] account:all
-- KEYS[4] dead · KEYS[5] dead:due · KEYS[6] dead:retries · KEYS[7] dead:traces · KEYS[8] dead:refs
-- KEYS[9] evaluations      prefix of the ledger's keys; only read
-- KEYS[10] batch           prefix of batch:<id>, string; only read
-- KEYS[11..] per evaluation dead:again:<judge model>   TTL ARGV[2]
-- ARGV[1] cap of the outbox in entries · ARGV[2] TTL in s
-- ARGV[3] delays before each automatic retry in ms, separated by commas
-- ARGV[4] number of traces
-- ARGV[5..] per trace its name and payload; then per evaluation: id, field in the ledger, period, letter as JSON, name of
--           its trace, verdict as JSON, reason, creation time of its batch as in batch ids, '1' if it may be retried
--           automatically, the batch that held it or ''
-- Returns 1 for each that was given up now, 0 for one that is finished or renewed.
local keys = letter_keys(4)
local writes = {
  {KEYS[1], 'stream', 'XADD'}, {KEYS[2], 'hash', 'HINCRBY'}, {KEYS[3], 'hash', 'HINCRBY'}, letter_writes(keys),
}
for index = 11, #KEYS do writes[#writes + 1] = {KEYS[index], 'zset', 'ZADD', 'EXPIRE'} end
local refused = guard(writes)
if refused then return refused end

local now = now_ms()
local delays, traces = {}, {}
for delay in ARGV[3]:gmatch('%d+') do delays[#delays + 1] = tonumber(delay) end
local first = 5 + 2 * ARGV[4]
for index = 5, first - 1, 2 do traces[ARGV[index]] = ARGV[index + 1] end

local function write_letter(evaluation, letter, times)
  put_letter(keys, evaluation.id, letter, evaluation.name, traces[evaluation.name])
  redis.call('ZADD', keys.due, now, evaluation.id)
  if evaluation.is_retryable == '1' and delays[times + 1] then
    redis.call('ZADD', evaluation.again, now + delays[times + 1], evaluation.id)
    redis.call('EXPIRE', evaluation.again, ARGV[2])
  end
end

-- A renewed letter keeps the time when its evaluation was first chosen.
local function with_first_time(old, new)
  local first_time = old:match('.*"chosen_at":([%d%.eE+-]+)')
  local head, tail = new:match('^(.*"chosen_at":)[%d%.eE+-]+(.*)$')
  return first_time and head and head .. first_time .. tail or new
end

-- Only the batch of the retry renews, because an older batch may still hold the evaluation.
local function renew(evaluation)
  local times, batch = (redis.call('HGET', keys.retries, evaluation.id) or ''):match('^(%d+) (.+)$')
  if not batch or batch:sub(1, #evaluation.batch_time) ~= evaluation.batch_time then return end
  count('dead:' .. (reason_of(evaluation.old) or evaluation.reason), -1)
  count('dead:' .. evaluation.reason, 1)
  redis.call('HSET', keys.retries, evaluation.id, times .. ' ')
  write_letter(evaluation, with_first_time(evaluation.old, evaluation.letter), tonumber(times))
end

-- All checks before the first write.
local added, pending, seen, old_letters, trace_names = {}, {}, {}, {}, {}
for index = 11, #KEYS do
  local from = first + (index - 11) * 10
  local id, field, period, letter, name, verdict, reason, batch_time, is_retryable, batch = unpack(ARGV, from, from + 9)
  local state = find_in(KEYS[9], period, field)
  added[#added + 1] = 0
  if not seen[id] and (not state or state == CHOSEN) then
    seen[id] = true
    local old = redis.call('HGET', keys.dead, id)
    pending[#pending + 1] = {id = id, letter = letter, name = name, verdict = verdict, reason = reason,
      batch_time = batch_time, is_retryable = is_retryable, again = KEYS[index], old = old}
    old_letters[#old_letters + 1] = old or nil
    trace_names[#trace_names + 1] = name
    if not old then
      count_lost_choice(state, old, batch ~= '' and KEYS[10] .. ':' .. batch)
      count('dead', 1)
      count('dead:' .. reason, 1)
      count('outbox', 1)
      added[#added] = 1
    end
  end
end
local expected = {}
for _, evaluation in ipairs(pending) do
  if evaluation.old then
    expected[#expected + 1] = 'dead:' .. evaluation.reason
    expected[#expected + 1] = 'dead:' .. (reason_of(evaluation.old) or evaluation.reason)
  end
end
refused = guard_account(KEYS[2], KEYS[3], expected) or guard_letters(keys, old_letters, trace_names)
if refused then return refused end

for _, evaluation in ipairs(pending) do
  if evaluation.old then
    renew(evaluation)
  else
    write_letter(evaluation, evaluation.letter, 0)
    redis.call('XADD', KEYS[1], 'MAXLEN', '~', ARGV[1], '*', 'v', '1', 'd', evaluation.verdict)
  end
end
write_account(KEYS[2], KEYS[3])
return added

-- @script dead_retry
-- @include leases
-- Chooses dead letters of one judge model again, as one batch with the evaluations' own ids. They stay dead letters until
-- their verdicts are in the ledger; a mark prevents a second retry. A repeated call changes nothing.
--
-- KEYS[1] dead; only read
-- KEYS[2] dead:retries · KEYS[3] dead:again:<judge model>
-- KEYS[4] leases · KEYS[5] waiting, see leases.lua
-- KEYS[6..] named by their index in the plan: batch:<id>, ready:<judge model>, batch:<id> of earlier retries (only read),
--           and tries:<id> (TTL plan.ledger_ttl_s)
-- ARGV[1] the plan, as msgpack · ARGV[2..] payloads of traces, named by their index in the plan
-- Returns per letter, in the order of the plan: 1 chosen, 0 retry under way, -1 no dead letter any more.
local plan = cmsgpack.unpack(ARGV[1])
local batch = plan.batches[1]
local refused = guard({
  {KEYS[2], 'hash', 'HSET'}, {KEYS[3], 'zset', 'ZREM'}, {KEYS[4], 'zset', 'ZADD'}, {KEYS[5], 'hash', 'HINCRBY'},
  {KEYS[batch.key], false, 'SET', 'STRLEN'}, {KEYS[batch.ready], 'zset', 'ZADD'}, {KEYS[plan.tries], 'hash', 'HSET', 'EXPIRE'},
  -- Read between the writes.
  {KEYS[1], 'hash', 'HEXISTS'}, {KEYS[2], 'hash', 'HGET'}, {KEYS[batch.key], false, 'EXISTS'},
}) or guard_counters(KEYS[5], {batch.judge_model})
if refused then return refused end
local now = now_ms()
local answers, items, tries = {}, {}, {}

-- A retry is under way while its batch exists. `seen` is the mark that the caller read; `earlier` is that mark's batch.
local function answer_for(letter)
  if redis.call('HEXISTS', KEYS[1], letter.id) == 0 then return -1 end
  local mark = redis.call('HGET', KEYS[2], letter.id) or ''
  if mark:match('^%d+ (.+)$') == batch.id then return 1, true end
  if mark ~= letter.seen then return 0 end
  if letter.earlier > 0 and redis.call('EXISTS', KEYS[letter.earlier]) == 1 then return 0 end
  return 1
end

local function choose(letter)
  local times = tonumber((redis.call('HGET', KEYS[2], letter.id) or ''):match('^%d+') or 0)
  if plan.automatic then times = times + 1 end
  redis.call('HSET', KEYS[2], letter.id, times .. ' ' .. batch.id)
  redis.call('ZREM', KEYS[3], letter.id)
  tries[#tries + 1] = letter.id
  tries[#tries + 1] = letter.spent
end

for _, trace in ipairs(plan.traces) do
  local texts = {}
  for _, letter in ipairs(trace.letters) do
    local answer, is_repeated = answer_for(letter)
    answers[#answers + 1] = answer
    if answer == 1 and not is_repeated then
      choose(letter)
      texts[#texts + 1] = letter.text
    end
  end
  if #texts > 0 then
    items[#items + 1] = '{"trace":' .. ARGV[trace.payload] .. ',"evaluations":[' .. table.concat(texts, ',') .. ']}'
  end
end

if #items > 0 then
  redis.call('SET', KEYS[batch.key], plan.head .. table.concat(items, ',') .. ']}')
  local keys = {batch = KEYS[batch.key], leases = KEYS[4], ready = KEYS[batch.ready], waiting = KEYS[5]}
  link_batch(keys, batch, now + plan.ready_ms)
  redis.call('HSET', KEYS[plan.tries], unpack(tries))
  redis.call('EXPIRE', KEYS[plan.tries], plan.ledger_ttl_s)
end
return answers

-- @script dead_remove
-- Removes dead letters for good: forgotten, dropped, or pruned by the caps. The ledger marks them as ended, so that no
-- retry under way, and no batch that still holds one, writes a verdict of it.
--
-- KEYS[1] account:<day> · KEYS[2] account:all
-- KEYS[3] dead · KEYS[4] dead:due · KEYS[5] dead:retries · KEYS[6] dead:traces · KEYS[7] dead:refs
-- KEYS[8] evaluations      prefix of the ledger's keys
-- ARGV[1] TTL of the ledger in s · ARGV[2] only letters given up at this time or before, in ms, or '+inf'
-- ARGV[3] only while letters and traces take more bytes than this; -1 for all
-- ARGV[4..] per letter the evaluation id and its field in the ledger
-- Returns 1 for each that was there, else 0.
local keys = letter_keys(3)
local refused = guard({
  {KEYS[3], 'hash', 'HDEL'}, {KEYS[1], 'hash', 'HINCRBY'}, {KEYS[2], 'hash', 'HINCRBY'}, {KEYS[8], false, 'HSET', 'EXPIRE'},
  letter_writes(keys),
})
if refused then return refused end
local bytes, letters_left = letter_bytes(keys), {}

local function may_remove(id)
  if bytes <= tonumber(ARGV[3]) then return false end
  local due = redis.call('ZSCORE', keys.due, id)
  return ARGV[2] == '+inf' or (due and tonumber(due) <= tonumber(ARGV[2]))
end

-- The bytes that remain without a letter; its trace is deleted with its last letter.
local function bytes_without(letter)
  local name = trace_of(letter)
  local bytes_left = bytes - #letter
  if not name then return bytes_left end
  letters_left[name] = (letters_left[name] or tonumber(redis.call('HGET', keys.refs, name) or 0)) - 1
  return letters_left[name] > 0 and bytes_left or bytes_left - redis.call('HSTRLEN', keys.traces, name)
end

local removed, removals, seen, letters = {}, {}, {}, {}
for index = 4, #ARGV, 2 do
  local id, field = ARGV[index], ARGV[index + 1]
  local letter = not seen[id] and may_remove(id) and redis.call('HGET', keys.dead, id)
  removed[#removed + 1] = letter and 1 or 0
  if letter then
    seen[id] = true
    local _, place = find_in(KEYS[8], period_of(letter), field)
    removals[#removals + 1] = {id = id, field = field, place = place, letter = letter}
    letters[#letters + 1] = letter
    bytes = bytes_without(letter)
    count_removed_letter(letter)
    count('removed', 1)
  end
end
refused = guard_account(KEYS[1], KEYS[2]) or guard_letters(keys, letters)
if refused then return refused end

for _, removal in ipairs(removals) do
  erase_letter(keys, removal.id, removal.letter)
  write_evaluation(removal.place, removal.field, ENDED.removed, tonumber(ARGV[1]))
end
write_account(KEYS[1], KEYS[2])
return removed
