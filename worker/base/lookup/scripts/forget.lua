-- Erases entries of the stream, late feedback, evaluations in batches and verdicts of a forgotten trace or person.
-- Dead letters are erased by dead_remove.
-- For account:<day> and account:all see accounting.lua.

-- @script forget_entries
-- @include accounting streams
-- Erases entries of the stream. Unfinished ones are acknowledged, so that a consumer that has read them chooses nothing of
-- them, and count as cut off, but not as a loss in the metrics of workers (`told`).
--
-- KEYS[1] traces   stream, group ARGV[1]; no TTL
-- KEYS[2] account:<day> · KEYS[3] account:all
-- ARGV[1] group · ARGV[2..] entry ids
-- Returns how many were there.
local refused = guard({
  {KEYS[1], 'stream', 'XACK', 'XDEL', 'XRANGE'}, {KEYS[2], 'hash', 'HINCRBY'}, {KEYS[3], 'hash', 'HINCRBY'},
}) or guard_account(KEYS[2], KEYS[3], {'trimmed', 'cut_off'}) or guard_counters(KEYS[3], {'told:cut_off'})
if refused then return refused end
if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
local delivered = last_delivered(KEYS[1], ARGV[1])

local function is_unread(id)
  return not delivered or #redis.call('XRANGE', KEYS[1], '(' .. delivered, id, 'COUNT', 1) > 0
end

local erased = 0
for index = 2, #ARGV do
  local id = ARGV[index]
  if #redis.call('XRANGE', KEYS[1], id, id) == 1 then
    local unread = is_unread(id)
    local pending = redis.call('XACK', KEYS[1], ARGV[1], id)
    redis.call('XDEL', KEYS[1], id)
    erased = erased + 1
    if unread or pending == 1 then count('cut_off', 1) end
  end
end
-- Redis 6.2 does not count added entries: the sum of its length and `trimmed` replaces that count.
count('trimmed', erased)
write_account(KEYS[2], KEYS[3])
if counts['cut_off'] then redis.call('HINCRBY', KEYS[3], 'told:cut_off', counts['cut_off']) end
return erased

-- @script forget_feedback
-- @include accounting
-- Erases pending late feedback; a pass that has read it ignores it.
--
-- KEYS[1] feedback:due   sorted set, feedback as JSON -> time of its pass in ms; TTL set by ingest
-- KEYS[2] account:<day> · KEYS[3] account:all
-- ARGV[1..] members
-- Returns how many were there.
local refused = guard({{KEYS[1], 'zset', 'ZREM'}, {KEYS[2], 'hash', 'HINCRBY'}, {KEYS[3], 'hash', 'HINCRBY'}})
  or guard_account(KEYS[2], KEYS[3], {'feedback:forgotten'})
if refused then return refused end
local erased = 0
for _, member in ipairs(ARGV) do erased = erased + redis.call('ZREM', KEYS[1], member) end
count('feedback:forgotten', erased)
write_account(KEYS[2], KEYS[3])
return erased

-- @script forget_batch
-- @include dead_letters
-- Removes evaluations from a batch, whoever holds it: the ledger marks them as ended, so that a verdict that a worker
-- still makes of one is not written. A batch without evaluations is finished.
--
-- KEYS[1] leases · KEYS[2] holders · KEYS[3] waiting · KEYS[4] ready:<judge model> · KEYS[5] batch:<id>
-- KEYS[6] tries:<id>, see leases.lua · KEYS[7] account:<day> · KEYS[8] account:all
-- KEYS[9] dead · KEYS[10] dead:due · KEYS[11] dead:retries · KEYS[12] dead:traces · KEYS[13] dead:refs, see
-- dead_letters.lua · KEYS[14] evaluations   prefix of the ledger's keys, see ledger.lua
-- ARGV[1] batch id · ARGV[2] judge model · ARGV[3] SHA-1 of the payload as it was read, in hex
-- ARGV[4] the new payload, or '' if nothing is left · ARGV[5] TTL of the ledger in s
-- ARGV[6..] per evaluation its id, its field in the ledger, and its period
-- Returns {evaluations that had not ended, letters among them}; -1 instead of the first if the batch has changed.
local keys = letter_keys(9)
local refused = guard({
  {KEYS[2], 'hash', 'HDEL'}, {KEYS[1], 'zset', 'ZREM'}, {KEYS[3], 'hash', 'HINCRBY'}, {KEYS[4], 'zset', 'ZREM'},
  {KEYS[5], 'string', 'SET', 'DEL'}, {KEYS[6], 'hash', 'HDEL', 'DEL'}, {KEYS[7], 'hash', 'HINCRBY'},
  {KEYS[8], 'hash', 'HINCRBY'}, {KEYS[14], false, 'HSET', 'EXPIRE'}, letter_writes(keys),
}) or guard_counters(KEYS[3], {ARGV[2]})
if refused then return refused end

local old = redis.call('GET', KEYS[5])
if not old then return {0, 0} end
if redis.sha1hex(old) ~= ARGV[3] then return {-1, 0} end

local letter_count, open, letters = 0, {}, {}
for index = 6, #ARGV, 3 do
  local id, field, period = ARGV[index], ARGV[index + 1], ARGV[index + 2]
  local state, place = find_in(KEYS[14], period, field)
  if not state or state == CHOSEN then
    local letter = redis.call('HGET', keys.dead, id)
    open[#open + 1] = {id = id, field = field, place = place, letter = letter}
    letters[#letters + 1] = letter or nil
    count('removed', 1)
    if letter then
      letter_count = letter_count + 1
      count_removed_letter(letter)
    end
  end
end
refused = guard_account(KEYS[7], KEYS[8]) or guard_letters(keys, letters)
if refused then return refused end

for index = 6, #ARGV, 3 do redis.call('HDEL', KEYS[6], ARGV[index]) end
for _, evaluation in ipairs(open) do
  write_evaluation(evaluation.place, evaluation.field, ENDED.removed, tonumber(ARGV[5]))
  if evaluation.letter then erase_letter(keys, evaluation.id, evaluation.letter) end
end
if ARGV[4] == '' then
  redis.call('DEL', KEYS[5], KEYS[6])
  redis.call('ZREM', KEYS[1], ARGV[1])
  redis.call('HDEL', KEYS[2], ARGV[1])
  redis.call('ZREM', KEYS[4], ARGV[1])
else
  redis.call('SET', KEYS[5], ARGV[4])
end
redis.call('HINCRBY', KEYS[3], ARGV[2], #ARGV[4] - #old)
write_account(KEYS[7], KEYS[8])
return {#open, letter_count}

-- @script forget_verdicts
-- @include guard
-- Erases entries of the outbox. For an exporter that has not read one it counts as cut off, but not as a loss in the
-- metrics of workers (`told`); one that has read it sends and acknowledges it as usual.
--
-- KEYS[1] verdicts   stream, one group per exporter
-- KEYS[2] account:all
-- ARGV[1..] entry ids
-- Returns how many were there.
local refused = guard({{KEYS[1], 'stream', 'XDEL', 'XRANGE'}, {KEYS[2], 'hash', 'HINCRBY'}})
if refused then return refused end
if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
local delivered = {}
for _, group in ipairs(redis.call('XINFO', 'GROUPS', KEYS[1])) do
  local state = pairs_of(group)
  delivered[state['name']] = state['last-delivered-id']
end

local counters = {}
for group in pairs(delivered) do
  counters[#counters + 1] = 'outbox_cut_off:' .. group
  counters[#counters + 1] = 'told:outbox_cut_off:' .. group
end
refused = guard_counters(KEYS[2], counters)
if refused then return refused end

local erased = 0
for _, id in ipairs(ARGV) do
  if #redis.call('XRANGE', KEYS[1], id, id) == 1 then
    for group, last in pairs(delivered) do
      if #redis.call('XRANGE', KEYS[1], '(' .. last, id, 'COUNT', 1) > 0 then
        redis.call('HINCRBY', KEYS[2], 'outbox_cut_off:' .. group, 1)
        redis.call('HINCRBY', KEYS[2], 'told:outbox_cut_off:' .. group, 1)
      end
    end
    erased = erased + redis.call('XDEL', KEYS[1], id)
  end
end
return erased
