-- Trim the stream of traces to its caps, and measure streams against the books. Redis' own lag is wrong for ever once
-- unread entries were trimmed, and 6.2 has none; so what was added, read and cut off is counted here. Exact wherever the
-- reader has read all or nothing of what the stream holds. In between, cut-offs may be noticed later, and the lag holds
-- them until then; on 6.2 it lacks what producers trimmed, until one of their entries is taken into the books.
--
-- KEYS[1] traces        stream
-- KEYS[2] verdicts      stream
-- KEYS[3] account:all   hash of counts; no TTL
-- KEYS[4] leases        sorted set
-- KEYS[5] holders       hash
-- KEYS[6] waiting       hash
-- KEYS[7] dead          hash
-- KEYS[8..] ready:<judge model>   sorted sets of judge models whose circuit is open: their batches count as parked
-- ARGV[1] oldest entry to keep (a stream id) · ARGV[2] cap in bytes · ARGV[3] cap in entries
-- ARGV[4] how old the mean size of an entry may be, in ms
-- ARGV[5] '1' for a worker, which counts what was newly cut off in its metrics: each cut is told to one worker once
-- ARGV[6..] groups of the outbox
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)

local function pairs_of(list)
  local result = {}
  for place = 1, #list, 2 do result[list[place]] = list[place + 1] end
  return result
end

local function number_of(field)
  return tonumber(redis.call('HGET', KEYS[3], field) or 0) or 0
end

-- What a group has not finished yet: {lag, newly cut off, age of the oldest in ms}. `added` is nil where only the
-- stream itself knows (7.0 and newer), else the count of everything ever written.
local function position(stream, group, added, read_field, cut_field, drift_field)
  if redis.call('EXISTS', stream) == 0 then return {0, 0, 0} end
  local info = pairs_of(redis.call('XINFO', 'STREAM', stream))
  local state
  for _, candidate in ipairs(redis.call('XINFO', 'GROUPS', stream)) do
    candidate = pairs_of(candidate)
    if candidate['name'] == group then state = candidate end
  end
  if not state then return {info['length'], 0, 0} end
  added = (added or info['entries-added']) + number_of(drift_field)
  local delivered, pending, cut = state['last-delivered-id'], state['pending'], number_of(cut_field)
  local first = info['length'] > 0 and info['first-entry'][1] or nil
  local unread = nil
  if delivered == info['last-generated-id'] then
    unread = 0
  elseif first and before(delivered, first) then
    unread = info['length']
  end
  local unexplained = added - number_of(read_field) - pending - cut
  -- A reader in the midst of the stream has as much before it as the books say, but never more than there is.
  local most = unread or info['length']
  if unexplained > most then
    redis.call('HINCRBY', KEYS[3], cut_field, unexplained - most)
    unread = most
  elseif unread and unexplained < unread then
    -- Somebody else trimmed what was read, on a Redis that does not count what was added: begin anew from here. But
    -- not while something is under way: what producers trimmed is in the books only when their entries are.
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

-- What an entry takes, in bytes. All of them are looked at: a sample takes the oldest only, and one large trace among
-- these would cut off thousands. So of many workers one does it, and the others take its word.
local function mean_size(length)
  local shared = tonumber(ARGV[4]) > 0
  if shared and now - number_of('mean:at') < tonumber(ARGV[4]) then return number_of('mean') end
  local mean = redis.call('MEMORY', 'USAGE', KEYS[1], 'SAMPLES', 0) / length
  if shared then redis.call('HSET', KEYS[3], 'mean', math.ceil(mean), 'mean:at', now) end
  return mean
end

local length = redis.call('XLEN', KEYS[1])
local capacity = math.min(tonumber(ARGV[3]), 99999999999999) -- cjson writes no more digits
if length > 0 then
  local trimmed = redis.call('XTRIM', KEYS[1], 'MINID', '~', ARGV[1], 'LIMIT', 100000)
  local mean = mean_size(length)
  capacity = math.max(1, math.min(capacity, math.floor(tonumber(ARGV[2]) / mean)))
  if redis.call('XLEN', KEYS[1]) > capacity then
    trimmed = trimmed + redis.call('XTRIM', KEYS[1], 'MAXLEN', '~', capacity, 'LIMIT', 100000)
  end
  if trimmed > 0 then redis.call('HINCRBY', KEYS[3], 'trimmed', trimmed) end
end

local added_traces = nil
if redis.call('EXISTS', KEYS[1]) == 1 and not pairs_of(redis.call('XINFO', 'STREAM', KEYS[1]))['entries-added'] then
  added_traces = redis.call('XLEN', KEYS[1]) + number_of('trimmed')
end
local traces = position(KEYS[1], 'ingest', added_traces, 'read', 'cut_off', 'drift')
local outbox = {}
for place = 6, #ARGV do
  local group = ARGV[place]
  outbox[group] = position(KEYS[2], group, number_of('outbox'), 'exported:' .. group, 'outbox_cut_off:' .. group,
    'outbox_drift:' .. group)
end

local parked = 0
for _, holder in ipairs(redis.call('HVALS', KEYS[5])) do
  if holder == 'parked' then parked = parked + 1 end
end
for place = 8, #KEYS do parked = parked + redis.call('ZCARD', KEYS[place]) end
local waiting = {}
for model, bytes in pairs(pairs_of(redis.call('HGETALL', KEYS[6]))) do waiting[model] = tonumber(bytes) end
return cjson.encode({
  traces = traces, capacity = capacity, outbox = next(outbox) and outbox or nil, batches = redis.call('ZCARD', KEYS[4]),
  parked = parked, waiting = next(waiting) and waiting or nil, dead = redis.call('HLEN', KEYS[7]),
  cut_off = number_of('cut_off'),
})
