-- Tell the time. When the clock was set back since somebody last asked, take along what was to happen by the old one:
-- the lease of a dead worker, a parking, and what a dead reader had read would else wait for as long as it was set back.
--
-- KEYS[1] clock          string, the time of the last call in ms; no TTL
-- KEYS[2] leases         sorted set, batch id -> due time in ms; no TTL
-- KEYS[3] feedback:due   sorted set, feedback as JSON -> time of its pass in ms; TTL set by ingest
-- KEYS[4] traces         stream; no TTL
-- KEYS[5] verdicts       stream; no TTL
-- ARGV[1] length of a lease in ms: what is due within it was taken since, or comes soon enough · ARGV[2] how far
--         back counts, in ms
-- Returns the time in ms.
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local back = tonumber(redis.call('GET', KEYS[1]) or 0) - now
-- A full Redis lets a script go on that has begun with what it never refuses: this is to be done there too.
redis.call('DEL', KEYS[1])
redis.call('SET', KEYS[1], now)
if back <= tonumber(ARGV[2]) then return now end

local function take_along(set)
  for _, member in ipairs(redis.call('ZRANGEBYSCORE', set, '(' .. now + ARGV[1], '+inf')) do
    redis.call('ZINCRBY', set, -back, member)
  end
end

-- Idle times begin anew; what was trimmed away meanwhile is left to whoever claims it, who counts it.
local function read_now(stream, group)
  local after = '-'
  repeat
    local pending = redis.call('XPENDING', stream, group, after, '+', 1000)
    for _, entry in ipairs(pending) do
      local id, consumer = entry[1], entry[2]
      if #redis.call('XRANGE', stream, id, id) > 0 then
        redis.call('XCLAIM', stream, group, consumer, 0, id, 'IDLE', 0, 'JUSTID')
      end
      after = '(' .. id
    end
  until #pending < 1000
end

for place = 2, 3 do take_along(KEYS[place]) end
for place = 4, 5 do
  if redis.call('EXISTS', KEYS[place]) == 1 then
    for _, group in ipairs(redis.call('XINFO', 'GROUPS', KEYS[place])) do read_now(KEYS[place], group[2]) end
  end
end
return now
