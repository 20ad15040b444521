-- @include guard
-- Accounting: counts gathered by a script and written once at its end, and totals of producers.
--
-- account:<day>   hash of counts of one day (UTC); TTL set by ingest
-- account:all     hash of counts since the beginning; no TTL
-- producer:<id>   hash. Written by the producer's script: sent, lost, trimmed; by choose: reported, dropped, and the
--                 amounts accounted for already: accounted, sent:accounted, lost:accounted, trimmed:accounted
local counts = {}

local function count(name, amount)
  if amount ~= 0 then counts[name] = (counts[name] or 0) + amount end
end

-- Returns an error if the counts cannot be written, else nil. `expected` are names of counts still to come.
local function guard_account(day, all, expected)
  local names = expected or {}
  for name in pairs(counts) do names[#names + 1] = name end
  return guard_counters(day, names) or guard_counters(all, names)
end

-- Adds the counts to those of the day and of all time.
local function write_account(day, all)
  for name, amount in pairs(counts) do
    if amount ~= 0 then
      redis.call('HINCRBY', day, name, amount)
      redis.call('HINCRBY', all, name, amount)
    end
  end
end

-- Returns the counts of a producer's hash that are not accounted for, and the new values of its `…:accounted` fields.
local function unaccounted(key)
  local totals = redis.call('HMGET', key, 'sent', 'dropped', 'reported', 'accounted', 'sent:accounted', 'lost',
    'lost:accounted', 'trimmed', 'trimmed:accounted')
  for index = 1, 9 do totals[index] = tonumber(totals[index] or 0) or 0 end
  local sent, dropped, reported, accounted = unpack(totals, 1, 4)
  -- A report lacks what was sent after it, and includes what was dropped before it.
  local published = math.max(sent + dropped, reported, accounted)
  return {
    published = published - accounted, sent = sent - totals[5], lost_by_redis = totals[6] - totals[7],
    trimmed = totals[8] - totals[9],
  }, {accounted = published, ['sent:accounted'] = sent, ['lost:accounted'] = totals[6],
    ['trimmed:accounted'] = totals[8], unsent = published - sent - dropped}
end

-- @script producers
-- Adds up what is not yet accounted for of some producers. Only reads.
--
-- KEYS[1..] producer:<id>   hash; TTL set by the producer or by ingest
-- Returns published, sent, lost by Redis, and trimmed.
for _, key in ipairs(KEYS) do
  local amounts = unaccounted(key)
  for name, amount in pairs(amounts) do count(name, amount) end
end
return {counts['published'] or 0, counts['sent'] or 0, counts['lost_by_redis'] or 0, counts['trimmed'] or 0}

-- @script forget_producers
-- @include streams
-- Removes producers that have been silent for long and accounts for their remainders. A producer stays while entries
-- that it may have sent are unread: these are accounted for by its hash when they are read.
--
-- KEYS[1] producers             sorted set, producer -> time of its last batch in ms; no TTL
-- KEYS[2] traces                stream, group ARGV[1]; only read
-- KEYS[3] account:<day> · KEYS[4] account:all
-- KEYS[5..] producer:<id>       hash; TTL set by the producer or by ingest
-- ARGV[1] group · ARGV[2] minimum silence in ms · ARGV[3..] the producer of each hash
-- Returns how many were removed.
local writes = {{KEYS[1], 'zset', 'ZREM', 'ZSCORE'}, {KEYS[3], 'hash', 'HINCRBY'}, {KEYS[4], 'hash', 'HINCRBY'}}
for index = 5, #KEYS do writes[#writes + 1] = {KEYS[index], 'hash', 'DEL', 'HMGET'} end
local refused = guard(writes)
if refused then return refused end
local silent_since = now_ms() - ARGV[2]

-- Time of the oldest unfinished entry in ms, nil if there is none.
local function oldest_open()
  if redis.call('EXISTS', KEYS[2]) == 0 then return nil end
  local delivered = last_delivered(KEYS[2], ARGV[1])
  local pending = delivered and redis.call('XPENDING', KEYS[2], ARGV[1])[2]
  local unread = redis.call('XRANGE', KEYS[2], delivered and '(' .. delivered or '-', '+', 'COUNT', 1)[1]
  local oldest = pending or unread and unread[1]
  return oldest and tonumber(oldest:match('%d+'))
end

local open_since = oldest_open()
if open_since then silent_since = math.min(silent_since, open_since - 1) end
local expired = {}
for index = 5, #KEYS do
  local producer = ARGV[index - 2]
  local last_seen = tonumber(redis.call('ZSCORE', KEYS[1], producer) or nil)
  if last_seen and last_seen <= silent_since then
    local amounts, state = unaccounted(KEYS[index])
    for name, amount in pairs(amounts) do count(name, amount) end
    -- The process ended with these in its buffer, or Redis lost them and the process ended before it could report it.
    count('dropped', state.unsent)
    count('dropped:abandoned', state.unsent)
    expired[#expired + 1] = {key = KEYS[index], name = producer}
  end
end
refused = guard_account(KEYS[3], KEYS[4])
if refused then return refused end

for _, producer in ipairs(expired) do
  redis.call('DEL', producer.key)
  redis.call('ZREM', KEYS[1], producer.name)
end
write_account(KEYS[3], KEYS[4])
return #expired
