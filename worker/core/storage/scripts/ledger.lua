-- The ledger: one small field per evaluation, in many small hashes that Redis keeps in its compact encoding.
--
-- evaluations:<period>:<part>   hash, first 16 bytes of the evaluation id -> CHOSEN or the code of its outcome; TTL of
--                               the ledger plus up to ten minutes, counted from its period's end or the last later write
--
-- The period is the hour of the trace's own time (`495678`, hours since 1970). Traces without a time use the day of
-- their arrival (`d20653`); the same publication may arrive again on another day, so all days are searched for them.
-- A part is named by the first digits of the evaluation id: two at first, one more where a part is full. A field leaves
-- its part only by TTL, so what was written into a part is found there even if the part is full now.
local CHOSEN = '0'
local ENDED = {scored = '1', abstained = '2', unscored = '3', removed = '4'}
local MAX_FIELDS = 100
local MAX_DIGITS = 6
local DAY_S = 86400
local HOUR_S = 3600
local SPREAD_S = 600

-- Returns the state of an evaluation in a period, nil for none, and the place that holds or would hold it: its period, its
-- part, the number of digits that names it, and whether that is a new key.
local function find_in(evaluations, period, field)
  local digits = string.format('%02x%02x%02x', field:byte(1, 3))
  local prefix = evaluations .. ':' .. period .. ':'
  local place = {period = period, prefix = prefix, digits = digits, length = 2, part = '', is_new = false}
  for length = 2, MAX_DIGITS do
    place.part, place.length = prefix .. digits:sub(1, length), length
    local state = redis.call('HGET', place.part, field)
    if state then return state, place end
    local fields = redis.call('HLEN', place.part)
    place.is_new = fields == 0
    if fields < MAX_FIELDS then break end
  end
  return nil, place
end

local all_days

-- The same over all periods that may hold the evaluation.
local function find_evaluation(evaluations, period, field, now_s, ttl_s)
  local state, place = find_in(evaluations, period, field)
  if state or period:sub(1, 1) ~= 'd' then return state, place end
  if not all_days then
    all_days = {}
    local today = math.floor(now_s / DAY_S)
    for day = today + 1, today - math.ceil(ttl_s / DAY_S) - 1, -1 do all_days[#all_days + 1] = 'd' .. day end
  end
  local others, parts = {}, {}
  for _, day in ipairs(all_days) do
    if day ~= period then
      others[#others + 1] = day
      parts[#parts + 1] = evaluations .. ':' .. day .. ':' .. place.digits:sub(1, 2)
    end
  end
  -- Other days rarely hold anything near it, and one command for all of them costs a fifth.
  if redis.call('EXISTS', unpack(parts)) == 0 then return nil, place end
  for _, day in ipairs(others) do
    local other_state, other_place = find_in(evaluations, day, field)
    if other_state then return other_state, other_place end
  end
  return nil, place
end

local left_by_period = {}

-- Returns for how many seconds a present period is written to, an hour after its end included; false for any other.
local function left_of(period)
  if left_by_period[period] == nil then
    local length_s = period:sub(1, 1) == 'd' and DAY_S or HOUR_S
    local number = tonumber((period:gsub('^d', ''))) or 0
    local left_s = (number + 1) * length_s + HOUR_S - now_ms() / 1000
    left_by_period[period] = left_s > 0 and left_s < 2 * DAY_S and left_s
  end
  return left_by_period[period]
end

-- A part must live as long as those with more digits, which are only searched when it is full. TTLs are spread over
-- minutes, since thousands of keys that expire in the same second delay other commands. A part of a present period lives
-- from an hour after its end on, so that the writes before that need not renew it; see find_in for the place.
local function write_evaluation(place, field, state, ttl_s)
  redis.call('HSET', place.part, field, state)
  local left_s = left_of(place.period)
  if left_s and not place.is_new then return end
  local part_ttl_s = math.ceil(ttl_s + (left_s or 0) + field:byte(1) * SPREAD_S / 256)
  for length = 2, place.length do redis.call('EXPIRE', place.prefix .. place.digits:sub(1, length), part_ttl_s) end
end
