-- @include streams
-- The backlog: what waits in the streams, in batches, and among the dead letters.

-- @script measure
-- Trims the streams to their caps and measures them against the accounting. Redis' own lag stays wrong once unread
-- entries were trimmed, and 6.2 has none, so added, read and cut-off entries are counted here. The result is exact
-- whenever the consumers have read all or nothing of a stream. In between, cut-offs may be noticed later, and the lag
-- contains them until then; on 6.2 it lacks what producers trimmed until one of their entries is accounted for.
--
-- KEYS[1] traces        stream
-- KEYS[2] verdicts      stream
-- KEYS[3] account:all   hash of counts; no TTL
-- KEYS[4] leases        sorted set; no TTL
-- KEYS[5] holders       hash; no TTL
-- KEYS[6] waiting       hash; no TTL
-- KEYS[7] dead          hash; no TTL
-- KEYS[8] dead:refs     hash; no TTL
-- KEYS[9] sessions      hash; no TTL
-- KEYS[10..] ready:<judge model>   sorted sets of judge models whose circuit is open: their batches count as parked
-- ARGV[1] oldest entry to keep (a stream id) · ARGV[2] cap in bytes · ARGV[3] cap in entries
-- ARGV[4] maximum age of the mean entry size in ms
-- ARGV[5] '1' for a worker, which counts new cut-offs in its metrics: each is reported to one worker once (`told`)
-- ARGV[6] cap of the outbox in bytes · ARGV[7..] groups of the outbox
-- Returns a JSON object, see worker/core/telemetry/backlog.py.
-- The first command needs no memory, so the script also runs on a full Redis.
local refused = guard({
  {KEYS[1], 'stream', 'XTRIM', 'XLEN', 'XRANGE', 'XPENDING', 'XINFO STREAM', 'XINFO GROUPS', 'MEMORY USAGE'},
  {KEYS[2], 'stream', 'XTRIM', 'XLEN'}, {KEYS[3], 'hash', 'HGET', 'HINCRBY', 'HSET'}, {KEYS[4], 'zset', 'ZCARD'},
  {KEYS[5], 'hash', 'HVALS'}, {KEYS[6], 'hash', 'HGETALL'}, {KEYS[7], 'hash', 'HLEN'}, {KEYS[8], 'hash', 'HGET'},
  {KEYS[9], 'hash', 'HGET'},
})
for index = 10, #KEYS do refused = refused or guard({{KEYS[index], 'zset'}}) end
local counters = {'trimmed', 'cut_off', 'told:cut_off', 'drift'}
for index = 7, #ARGV do
  for _, name in ipairs({'outbox_cut_off:', 'told:outbox_cut_off:', 'outbox_drift:'}) do
    counters[#counters + 1] = name .. ARGV[index]
  end
end
refused = refused or guard_counters(KEYS[3], counters)
if refused then return refused end
local now = now_ms()

local function number_of(field)
  return tonumber(redis.call('HGET', KEYS[3], field) or 0) or 0
end

-- Returns the unfinished entries of a group: {lag, newly cut off, age of the oldest in ms}. `added` counts all entries ever
-- written; nil means that the stream itself knows (Redis 7.0 and newer).
local function measure_group(stream, group, added, read_field, cut_field, drift_field)
  if redis.call('EXISTS', stream) == 0 then return {0, 0, 0} end
  local info = pairs_of(redis.call('XINFO', 'STREAM', stream))
  local state = group_state(stream, group)
  if not state then return {info['length'], 0, 0} end
  added = (added or info['entries-added']) + number_of(drift_field)
  local delivered, pending, cut_off = state['last-delivered-id'], state['pending'], number_of(cut_field)
  local first = info['length'] > 0 and info['first-entry'][1] or nil
  local unread = nil
  if delivered == info['last-generated-id'] then
    unread = 0
  elseif first and before(delivered, first) then
    unread = info['length']
  end
  local unexplained = added - number_of(read_field) - pending - cut_off
  -- A group in the midst of the stream has the unexplained entries before it, but never more than the stream holds.
  local maximum = unread or info['length']
  if unexplained > maximum then
    redis.call('HINCRBY', KEYS[3], cut_field, unexplained - maximum)
    unread = maximum
  elseif unread and unexplained < unread then
    -- Somebody else trimmed read entries, on a Redis that does not count added ones: restart from here. But not while
    -- entries are unfinished: what producers trimmed is accounted for only with their entries.
    if unread + pending == 0 then redis.call('HINCRBY', KEYS[3], drift_field, -unexplained) end
  elseif not unread then
    unread = math.max(0, unexplained)
  end
  local newly_cut = 0
  if ARGV[5] == '1' then
    newly_cut = number_of(cut_field) - number_of('told:' .. cut_field)
    if newly_cut > 0 then redis.call('HINCRBY', KEYS[3], 'told:' .. cut_field, newly_cut) end
  end
  local oldest = nil
  if pending > 0 then
    oldest = redis.call('XPENDING', stream, group)[2]
  elseif unread > 0 then
    local following = redis.call('XRANGE', stream, '(' .. delivered, '+', 'COUNT', 1)[1]
    oldest = following and following[1]
  end
  local age = oldest and math.max(0, now - tonumber(oldest:match('%d+'))) or 0
  return {unread + pending, newly_cut, age}
end

-- Mean size of an entry in bytes, over all entries: a sample would be of the oldest only, and one large trace among these
-- would cut off thousands. That takes time, so one of the workers measures and the others use its result.
local function mean_size(stream, field, age_ms)
  local shared = age_ms > 0
  if shared and now - number_of(field .. ':at') < age_ms then return number_of(field) end
  local mean = redis.call('MEMORY', 'USAGE', stream, 'SAMPLES', 0) / redis.call('XLEN', stream)
  if shared then redis.call('HSET', KEYS[3], field, math.ceil(mean), field .. ':at', now) end
  return mean
end

-- Trims a stream to its caps: entries removed, entries it may hold, bytes it takes.
local function trim(stream, field, age_ms, max_bytes, max_entries)
  local capacity = math.min(tonumber(max_entries), 99999999999999) -- cjson writes no more digits
  if redis.call('XLEN', stream) == 0 then return 0, capacity, 0 end
  local mean, trimmed = mean_size(stream, field, age_ms), 0
  capacity = math.max(1, math.min(capacity, math.floor(tonumber(max_bytes) / mean)))
  if redis.call('XLEN', stream) > capacity then
    trimmed = redis.call('XTRIM', stream, 'MAXLEN', '~', capacity, 'LIMIT', 100000)
  end
  return trimmed, capacity, math.floor(mean * redis.call('XLEN', stream))
end

local trimmed = redis.call('XTRIM', KEYS[1], 'MINID', '~', ARGV[1], 'LIMIT', 100000)
local over_cap, capacity, trace_bytes = trim(KEYS[1], 'mean', tonumber(ARGV[4]), ARGV[2], ARGV[3])
trimmed = trimmed + over_cap
if trimmed > 0 then redis.call('HINCRBY', KEYS[3], 'trimmed', trimmed) end
-- The number of verdicts is capped where they are added; this caps their bytes. Verdicts are alike in size, so their mean
-- may be older: measuring half a GiB takes Redis 20 ms.
local _, _, outbox_bytes = trim(KEYS[2], 'outbox_mean', 10 * ARGV[4], ARGV[6], 99999999999999)

local added_traces = nil
if redis.call('EXISTS', KEYS[1]) == 1 and not pairs_of(redis.call('XINFO', 'STREAM', KEYS[1]))['entries-added'] then
  added_traces = redis.call('XLEN', KEYS[1]) + number_of('trimmed')
end
local traces = measure_group(KEYS[1], 'ingest', added_traces, 'read', 'cut_off', 'drift')
-- With nothing unread, the rest of the cut-off entries are known to be no traces of producers.
if traces[1] == 0 then
  local not_read = number_of('sent') - number_of('lost_by_redis') - number_of('arrived') + number_of('bare')
  local others = math.max(0, number_of('cut_off') - math.max(0, not_read))
  if others ~= number_of('cut_off_others') then redis.call('HSET', KEYS[3], 'cut_off_others', others) end
end
local outbox = {}
for index = 7, #ARGV do
  local group = ARGV[index]
  outbox[group] = measure_group(KEYS[2], group, number_of('outbox'), 'exported:' .. group, 'outbox_cut_off:' .. group,
    'outbox_drift:' .. group)
end

local parked = 0
for _, holder in ipairs(redis.call('HVALS', KEYS[5])) do
  if holder == 'parked' then parked = parked + 1 end
end
for index = 10, #KEYS do parked = parked + redis.call('ZCARD', KEYS[index]) end
local waiting, batch_bytes = {}, 0
for model, bytes in pairs(pairs_of(redis.call('HGETALL', KEYS[6]))) do
  waiting[model] = tonumber(bytes)
  batch_bytes = batch_bytes + waiting[model]
end
return cjson.encode({
  traces = traces, capacity = capacity, outbox = next(outbox) and outbox or nil, batches = redis.call('ZCARD', KEYS[4]),
  parked = parked, waiting = next(waiting) and waiting or nil, dead = redis.call('HLEN', KEYS[7]),
  cut_off = number_of('cut_off'),
  bytes = {
    traces = trace_bytes, outbox = outbox_bytes, batches = batch_bytes,
    dead_letters = tonumber(redis.call('HGET', KEYS[8], 'bytes') or 0),
    sessions = tonumber(redis.call('HGET', KEYS[9], 'bytes') or 0),
  },
})

-- @script flow_positions
-- Returns the positions of both streams' groups and the longest-waiting batch of each judge model. Only reads.
--
-- KEYS[1] traces        stream
-- KEYS[2] verdicts      stream
-- KEYS[3..] ready:<judge model>   sorted set, batch id -> creation time in ms; no TTL
-- ARGV[1] the group of the first stream · ARGV[2..] groups of the second
-- Returns for each group, and then for each judge model, a mark that changes when work is taken; '' if none waits.
local function collect_marks(stream)
  local marks = {}
  if redis.call('EXISTS', stream) == 0 then return marks end
  for _, group in ipairs(redis.call('XINFO', 'GROUPS', stream)) do
    group = pairs_of(group)
    local delivered = group['last-delivered-id']
    -- The stream's last id does not tell it, because its last entry may have been trimmed away.
    local waits = #redis.call('XRANGE', stream, '(' .. delivered, '+', 'COUNT', 1) > 0
    marks[group['name']] = waits and delivered or ''
  end
  return marks
end

local trace_marks, verdict_marks = collect_marks(KEYS[1]), collect_marks(KEYS[2])
local marks = {trace_marks[ARGV[1]] or ''}
for index = 2, #ARGV do marks[#marks + 1] = verdict_marks[ARGV[index]] or '' end
for index = 3, #KEYS do marks[#marks + 1] = redis.call('ZRANGE', KEYS[index], 0, 0)[1] or '' end
return marks
