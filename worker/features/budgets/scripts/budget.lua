-- @include guard
-- Budgets: the cost of judge calls by hour and day (UTC), of reservations, and of a full rate. USD are counted in 10^-9.
--
-- KEYS of each script, three for each budget:
-- budget:<name>                hash: day, hour (numbers since 1970), usd:day, usd:hour, tokens:day, tokens:hour (settled),
--                              usd:open, tokens:open (reserved), refused, since (ms of the first call); TTL of a week
-- budget:<name>:open           zset, reservation -> expiry in ms; TTL of a week. A reservation is one text:
--                              id, usd, tokens, weight, priority, separated by blanks. Priority 10 means that the
--                              evaluation does not depend on a rate; it may differ between the budgets of one call.
-- budget:<name>:demand         prefix of budget:<name>:demand:<day>, hash, unit, five minutes of the day and priority as
--                              `usd:17:5` -> cost as if each rate were whole, which is cost x weight; TTL of three days
local HOUR_MS, DAY_MS, BIN_MS = 3600000, 86400000, 300000
local WEEK_S, DEMAND_S = 604800, 259200

local function demand_of(prefix, now)
  return prefix .. ':' .. math.floor(now / DAY_MS)
end

-- What the functions below write; the first command needs memory unless `is_settling`.
local function guard_budgets(now, is_settling)
  local writes = {}
  for index = 1, #KEYS, 3 do
    local open = {KEYS[index + 1], 'zset', 'ZADD', 'ZREM', 'ZRANGEBYSCORE', 'ZCARD', 'EXPIRE'}
    if is_settling then open[3], open[4] = open[4], open[3] end
    writes[#writes + 1] = open
    writes[#writes + 1] = {KEYS[index], 'hash', 'HINCRBY', 'HSET', 'HGET', 'HMGET', 'EXPIRE'}
    writes[#writes + 1] = {demand_of(KEYS[index + 2], now), 'hash', 'HINCRBY', 'EXPIRE'}
  end
  return guard(writes)
end

-- Adds a cost to the current hour and day, and to the demand.
local function charge(index, now, usd, tokens, weight, priority)
  local state, demand = KEYS[index], demand_of(KEYS[index + 2], now)
  local bin = math.floor(now % DAY_MS / BIN_MS)
  for unit, amount in pairs({usd = tonumber(usd), tokens = tonumber(tokens)}) do
    redis.call('HINCRBY', state, unit .. ':day', string.format('%.0f', amount))
    redis.call('HINCRBY', state, unit .. ':hour', string.format('%.0f', amount))
    redis.call('HINCRBY', demand, unit .. ':' .. bin .. ':' .. priority, string.format('%.0f', amount * weight))
  end
  redis.call('EXPIRE', demand, DEMAND_S)
end

-- Removes a reservation and charges the true cost, by default the reserved cost; does nothing if it is gone.
local function settle(index, now, reservation, true_usd, true_tokens)
  local usd, tokens, weight, priority = reservation:match('^%S+ (%d+) (%d+) (%S+) (%d+)$')
  if not usd or redis.call('ZREM', KEYS[index + 1], reservation) == 0 then return 0 end
  -- Not '-' .. usd: Redis takes '-0' for no number.
  redis.call('HINCRBY', KEYS[index], 'usd:open', string.format('%.0f', 0 - tonumber(usd)))
  redis.call('HINCRBY', KEYS[index], 'tokens:open', string.format('%.0f', 0 - tonumber(tokens)))
  charge(index, now, true_usd or usd, true_tokens or tokens, tonumber(weight), priority)
  return 1
end

-- Begins the current hour and day, and settles expired reservations at what they reserved.
local function bring_up_to_date(index, now)
  local state = KEYS[index]
  for name, length in pairs({day = DAY_MS, hour = HOUR_MS}) do
    local period, begun = math.floor(now / length), tonumber(redis.call('HGET', state, name))
    -- A clock that is set back by a moment, as on a replica after a failover, must not begin the last period anew.
    if not begun or period > begun or period < begun - 1 then
      redis.call('HSET', state, name, string.format('%.0f', period), 'usd:' .. name, 0, 'tokens:' .. name, 0)
      redis.call('EXPIRE', state, WEEK_S)
    end
  end
  for _, reservation in ipairs(redis.call('ZRANGEBYSCORE', KEYS[index + 1], '-inf', now, 'LIMIT', 0, 1000)) do
    settle(index, now, reservation)
  end
  if redis.call('ZCARD', KEYS[index + 1]) == 0 then
    -- Otherwise the amount of lost reservations, as by an eviction, would stay for ever.
    redis.call('HSET', state, 'usd:open', 0, 'tokens:open', 0)
  end
end

-- @script budget_reserve
-- Reserves the cost of one call in all budgets that concern it, or in none.
--
-- ARGV[1] how long the reservations are kept, in ms
-- ARGV[2..] for each budget the reservation and its limits: usd a day, usd an hour, tokens a day, tokens an hour; -1 for none
-- Returns 0, or the number of the first budget that refuses the call.
local now = now_ms()
local refused = guard_budgets(now, false)
if refused then return refused end
local usd, tokens = ARGV[2]:match('^%S+ (%d+) (%d+) ')
local amounts = {tonumber(usd), tonumber(usd), tonumber(tokens), tonumber(tokens)}
for index = 1, #KEYS, 3 do
  bring_up_to_date(index, now)
  local costs = redis.call('HMGET', KEYS[index], 'usd:day', 'usd:hour', 'tokens:day', 'tokens:hour', 'usd:open', 'tokens:open')
  for number, amount in ipairs(amounts) do
    local limit = tonumber(ARGV[2 + (index - 1) / 3 * 5 + number])
    local open = tonumber(costs[number <= 2 and 5 or 6])
    if limit >= 0 and tonumber(costs[number]) + open + amount > limit then
      redis.call('HINCRBY', KEYS[index], 'refused', 1)
      return (index + 2) / 3
    end
  end
end
for index = 1, #KEYS, 3 do
  redis.call('ZADD', KEYS[index + 1], now + ARGV[1], ARGV[2 + (index - 1) / 3 * 5])
  redis.call('HINCRBY', KEYS[index], 'usd:open', usd)
  redis.call('HINCRBY', KEYS[index], 'tokens:open', tokens)
  if not redis.call('HGET', KEYS[index], 'since') then
    redis.call('HSET', KEYS[index], 'since', string.format('%.0f', now))
  end
  redis.call('EXPIRE', KEYS[index], WEEK_S)
  redis.call('EXPIRE', KEYS[index + 1], WEEK_S)
end
return 0

-- @script budget_settle
-- Replaces the reservations of a call by its true cost.
--
-- ARGV[1] usd · ARGV[2] tokens · ARGV[3..] for each budget the reservation
-- Returns in how many budgets it was still open.
local now = now_ms()
local refused = guard_budgets(now, true)
if refused then return refused end
local settled = 0
for index = 1, #KEYS, 3 do
  bring_up_to_date(index, now)
  settled = settled + settle(index, now, ARGV[3 + (index - 1) / 3], ARGV[1], ARGV[2])
end
return settled

-- @script budget_state
-- Returns for each budget the settled amounts by day and hour, the reserved amounts, the number of refused calls and the
-- time of the first call; last the present time. All are texts.
local now = now_ms()
local refused = guard_budgets(now, true)
if refused then return refused end
local states = {}
for index = 1, #KEYS, 3 do
  bring_up_to_date(index, now)
  states[#states + 1] = redis.call('HMGET', KEYS[index], 'usd:day', 'usd:hour', 'tokens:day', 'tokens:hour', 'usd:open',
    'tokens:open', 'refused', 'since')
end
states[#states + 1] = string.format('%.0f', now)
return states
