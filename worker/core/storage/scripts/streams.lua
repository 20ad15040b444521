-- @include guard
-- Streams and their consumer groups.
--
-- groups   hash; no TTL:
--   <stream>:<group>       id of the last entry acknowledged. A group that somebody destroyed is created again there
--                          (open_group), and one that somebody set back returns there (acknowledging).
--   <stream>:<group>:all   an id up to which every entry was acknowledged: what is delivered again counts no more

-- Whether an entry id comes before another.
local function before(left, right)
  local a, b = {left:match('(%d+)-(%d+)')}, {right:match('(%d+)-(%d+)')}
  a[1], a[2], b[1], b[2] = tonumber(a[1]), tonumber(a[2]), tonumber(b[1]), tonumber(b[2])
  return a[1] < b[1] or (a[1] == b[1] and a[2] < b[2])
end

-- Returns the state of a group of a stream that exists, nil without the group.
local function state_of(stream, name)
  for _, group in ipairs(redis.call('XINFO', 'GROUPS', stream)) do
    local state = pairs_of(group)
    if state['name'] == name then return state end
  end
end

-- The same, nil also without the stream.
local function group_state(stream, name)
  return redis.call('EXISTS', stream) == 1 and state_of(stream, name) or nil
end

local function last_delivered(stream, name)
  local state = group_state(stream, name)
  return state and state['last-delivered-id']
end

-- The commands on the stream that guard() checks before an acknowledgement is noted.
local OF_STREAM = {'XACK', 'XPENDING', 'XINFO GROUPS'}

-- Returns two functions: one acknowledges entries and returns how many were acknowledged for the first time, which Redis
-- itself forgets when somebody sets the group back (XGROUP SETID); the other notes the last of them at the end, and moves
-- such a group to where it was. `first` is the smallest id of all entries.
local function acknowledging(stream, group, groups, field, first)
  local last_noted, complete_until = unpack(redis.call('HMGET', groups, field, field .. ':all'))
  -- Entries are acknowledged one by one only after a set-back, because some of them do not count again.
  local step = complete_until and not before(complete_until, first) and 1 or 1000
  local requested, acknowledged = 0, 0

  local function acknowledge(ids)
    local new = 0
    for start = 1, #ids, step do
      local amount = redis.call('XACK', stream, group, unpack(ids, start, math.min(start + step - 1, #ids)))
      acknowledged = acknowledged + amount
      if step > 1 or before(complete_until, ids[start]) then new = new + amount end
    end
    requested = requested + #ids
    return new
  end

  local function note(last)
    if acknowledged == 0 then return end
    -- What was acknowledged was in a group of the stream.
    local state = state_of(stream, group)
    local delivered, writes = state['last-delivered-id'], {}
    -- Of a group that was made again, entries that are delivered once more come before the last one here.
    if acknowledged == requested and not (last_noted and before(last, last_noted)) then
      last_noted, writes = last, {field, last}
    end
    local is_back = last_noted and before(delivered, last_noted)
    if is_back then redis.pcall('XGROUP', 'SETID', stream, group, last_noted) end
    local pending = not is_back and state['pending'] > 0 and redis.call('XPENDING', stream, group)[2]
    if pending then
      -- The id before it.
      local ms, number = pending:match('(%d+)-(%d+)')
      delivered = number == '0' and string.format('%.0f-18446744073709551615', ms - 1)
        or string.format('%s-%.0f', ms, number - 1)
    end
    if not is_back and (not complete_until or before(complete_until, delivered)) then
      writes[#writes + 1], writes[#writes + 2] = field .. ':all', delivered
    end
    if #writes > 0 then redis.call('HSET', groups, unpack(writes)) end
  end
  return acknowledge, note
end

-- @script open_group
-- Creates a consumer group unless it exists. One that was destroyed is created after the last entry it had acknowledged:
-- nothing is read twice, and what was pending before that entry counts as cut off. A new group begins with the oldest
-- entry; the counts of a new exporter begin with what the outbox holds, since earlier cut-offs were no loss to it.
--
-- KEYS[1] traces or verdicts   stream
-- KEYS[2] account:all          hash of counts; no TTL
-- KEYS[3] groups               hash, <stream>:<group> -> id of the last entry acknowledged; no TTL
-- KEYS[4] layout               string, version of all keys; no TTL
-- KEYS[5] partitions           string, how many there are; in the first only; no TTL
-- ARGV[1] group · ARGV[2] its field in KEYS[3] · ARGV[3] '1' for an exporter's group · ARGV[4] version of the keys
-- ARGV[5] number of partitions, '' in all but the first
-- Returns 1 if it was created.
local refused = guard({{KEYS[2], 'hash', 'HSET', 'HINCRBY'}, {KEYS[1], 'stream'}, {KEYS[3], 'hash', 'HDEL'}, {KEYS[4], 'string', 'SET'},
  {KEYS[5], 'string'}})
if refused then return refused end
-- Two workers with different numbers may both have found none.
local count = redis.call('GET', KEYS[5])
if count and ARGV[5] ~= '' and count ~= ARGV[5] then
  return refusal('there are ', count, ' partitions by ', KEYS[5], ', and ', ARGV[5], ' configured; set partitions to ', count)
end

local function number_of(field)
  return tonumber(redis.call('HGET', KEYS[2], field) or 0) or 0
end

redis.call('SET', KEYS[4], ARGV[4], 'NX')
if ARGV[5] ~= '' then redis.call('SET', KEYS[5], ARGV[5], 'NX') end
if group_state(KEYS[1], ARGV[1]) then return 0 end
local position = redis.call('HGET', KEYS[3], ARGV[2])
if position then
  -- A stream whose last id is smaller is a new one: it was deleted, and the clock was set back.
  local exists_now = redis.call('EXISTS', KEYS[1]) == 1
  local last = exists_now and pairs_of(redis.call('XINFO', 'STREAM', KEYS[1]))['last-generated-id'] or '0-0'
  if before(last, position) then
    position = '0-0'
    redis.call('HDEL', KEYS[3], ARGV[2], ARGV[2] .. ':all')
  end
end
redis.call('XGROUP', 'CREATE', KEYS[1], ARGV[1], position or '0-0', 'MKSTREAM')
local info = pairs_of(redis.call('XINFO', 'STREAM', KEYS[1]))
local length, added, first = info['length'], info['entries-added'], info['first-entry']
if position and ARGV[3] == '0' and (added or length) == length and (length == 0 or before(position, first[1])) then
  -- Somebody removed the stream, by EXPIRE as a rule: what was unread is lost, and added entries are counted anew.
  redis.call('HINCRBY', KEYS[2], 'vanished:traces', 1)
  redis.call('HSET', KEYS[2], 'drift', number_of('read') + number_of('cut_off') - (added and 0 or number_of('trimmed')))
end
if ARGV[3] == '1' and not position then
  local read = number_of('exported:' .. ARGV[1]) + number_of('outbox_cut_off:' .. ARGV[1])
  local drift = redis.call('XLEN', KEYS[1]) + read - number_of('outbox')
  if drift ~= 0 then redis.call('HSET', KEYS[2], 'outbox_drift:' .. ARGV[1], drift) end
end
return 1

-- @script acknowledge
-- Acknowledges outbox entries for one exporter.
--
-- KEYS[1] verdicts      stream
-- KEYS[2] account:all   hash of counts; no TTL
-- KEYS[3] groups        hash, see above
-- ARGV[1] group · ARGV[2] last of the entries · ARGV[3..] entry ids, the smallest first
-- Returns for each entry 1 if it was acknowledged now for the first time, else 0.
local refused = guard({{KEYS[1], 'stream', unpack(OF_STREAM)}, {KEYS[2], 'hash', 'HINCRBY'}, {KEYS[3], 'hash', 'HMGET', 'HSET'}})
  or guard_counters(KEYS[2], {'exported:' .. ARGV[1]})
if refused then return refused end
local acknowledge, note = acknowledging(KEYS[1], ARGV[1], KEYS[3], 'verdicts:' .. ARGV[1], ARGV[3])
local fresh, total = {}, 0
for index = 3, #ARGV do
  local amount = acknowledge({ARGV[index]})
  fresh[#fresh + 1] = amount
  total = total + amount
end
if total > 0 then redis.call('HINCRBY', KEYS[2], 'exported:' .. ARGV[1], total) end
note(ARGV[2])
return fresh

-- @script pass_group
-- Moves a group to an entry up to which its reader has counted the stream by a position of its own. Entries before the
-- group's place change nothing, so that the script can be repeated.
--
-- KEYS[1] verdicts      stream
-- KEYS[2] account:all   hash of counts; no TTL
-- KEYS[3] groups        hash, <stream>:<group> -> id of the last entry acknowledged; no TTL
-- ARGV[1] group · ARGV[2] the entry
-- Returns how many entries were passed.
local exported = 'exported:' .. ARGV[1]
local refused = guard({{KEYS[2], 'hash', 'HINCRBY'}, {KEYS[1], 'stream', 'XRANGE'}, {KEYS[3], 'hash', 'HGET', 'HSET'}})
  or guard_counters(KEYS[2], {exported})
if refused then return refused end
local field = 'verdicts:' .. ARGV[1]
local delivered, last_noted = last_delivered(KEYS[1], ARGV[1]), redis.call('HGET', KEYS[3], field)
if not delivered or not before(delivered, ARGV[2]) then return 0 end
-- Somebody may have set the group back.
if last_noted and before(delivered, last_noted) then delivered = last_noted end
local passed = before(delivered, ARGV[2]) and #redis.call('XRANGE', KEYS[1], '(' .. delivered, ARGV[2]) or 0
redis.call('XGROUP', 'SETID', KEYS[1], ARGV[1], ARGV[2])
redis.call('HINCRBY', KEYS[2], exported, passed)
if passed > 0 then redis.call('HSET', KEYS[3], field, ARGV[2]) end
return passed

-- @script claim
-- Claims entries of a group that their consumer has not acknowledged for a while. One entry at a time, since XCLAIM
-- bounds only the count: 128 entries of 4 MiB would be 512 MiB.
--
-- KEYS[1] stream; no TTL
-- ARGV[1] group · ARGV[2] consumer · ARGV[3] maximum
-- ARGV[4] bytes of field values after which no further entry is claimed; the first is claimed whatever its size
-- ARGV[5] minimum idle time in ms
-- Returns a list of {id, fields}; fields are false for an entry that is no longer in the stream.
local stream, group, consumer = KEYS[1], ARGV[1], ARGV[2]
local count, max_bytes, idle_ms = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])

local entries, bytes = {}, 0
for _, stale in ipairs(redis.call('XPENDING', stream, group, 'IDLE', idle_ms, '-', '+', count)) do
  local id = stale[1]
  local entry = redis.call('XCLAIM', stream, group, consumer, idle_ms, id)[1]
  -- XAUTOCLAIM of Redis 6.2 loses entries that were trimmed away.
  if not entry and #redis.call('XRANGE', stream, id, id) == 0 then entry = {id, false} end
  if entry then
    entries[#entries + 1] = entry
    local fields = entry[2] or {}
    for index = 2, #fields, 2 do bytes = bytes + #fields[index] end
    if bytes > max_bytes then break end
  end
end
return entries

-- @script keep
-- Resets the idle time of entries that a consumer still works on, so that no other claims them. Entries that another
-- consumer has claimed stay with that one.
--
-- KEYS[1] stream; no TTL
-- ARGV[1] group · ARGV[2] consumer · ARGV[3..] entry ids
-- Returns how many still belong to the consumer.
local own_ids = {}
for index = 3, #ARGV do
  local id = ARGV[index]
  if #redis.call('XPENDING', KEYS[1], ARGV[1], id, id, 1, ARGV[2]) == 1 then own_ids[#own_ids + 1] = id end
end
local kept = #own_ids
if kept > 0 then
  own_ids[kept + 1] = 'JUSTID'
  redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0, unpack(own_ids))
end
return kept

-- @script retire
-- Removes consumers that have nothing pending and were silent for long. One step, so that nothing becomes pending in
-- between.
--
-- KEYS[1] stream; no TTL
-- ARGV[1] group · ARGV[2] minimum silence in ms · ARGV[3] maximum to remove
-- Returns how many were removed; 0 without stream or group.
local consumers = redis.pcall('XINFO', 'CONSUMERS', KEYS[1], ARGV[1])
if consumers.err then return 0 end
local retired = 0
for _, consumer in ipairs(consumers) do
  local state = pairs_of(consumer)
  -- Before Redis 7.2 `idle` counts from the last delivery, later from the last attempt to read.
  if state.pending == 0 and state.idle >= tonumber(ARGV[2]) then
    redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], state.name)
    retired = retired + 1
    if retired == tonumber(ARGV[3]) then break end
  end
end
return retired

-- @script leave
-- Removes a consumer from its group unless entries are pending there: others claim those first.
--
-- KEYS[1] stream; no TTL
-- ARGV[1] group · ARGV[2] consumer
-- Returns 1 if none is left.
local pending = redis.pcall('XPENDING', KEYS[1], ARGV[1], '-', '+', 1, ARGV[2])
if pending.err or #pending > 0 then return 0 end
redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], ARGV[2])
return 1
