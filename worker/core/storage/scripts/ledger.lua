-- The ledger: one small field per evaluation, in many small hashes that Redis keeps in its compact encoding.
--
-- evaluations:<period>:<part>   hash, first 16 bytes of the evaluation id -> CHOSEN or the code of its outcome; TTL of
--                               the ledger plus up to ten minutes, counted from its hour's end or the last later write
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
local SPREAD_S = 600

-- Returns the state of an evaluation in a period, nil for none, the part that holds or would hold it, and whether that is
-- a new key.
local function find_in(evaluations, period, field)
  local digits = string.format('%02x%02x%02x', field:byte(1, 3))
  local part
  for length = 2, MAX_DIGITS do
    part = evaluations .. ':' .. period .. ':' .. digits:sub(1, length)
    local state = redis.call('HGET', part, field)
    if state then return state, part end
    local fields = redis.call('HLEN', part)
    if fields < MAX_FIELDS then return nil, part, fields == 0 end
  end
  return nil, part
end

-- The same over all periods that may hold the evaluation.
local function find_evaluation(evaluations, period, field, now_s, ttl_s)
  local state, part, is_new = find_in(evaluations, period, field)
  if state or period:sub(1, 1) ~= 'd' then return state, part, is_new end
  local today = math.floor(now_s / DAY_S)
  for day = today + 1, today - math.ceil(ttl_s / DAY_S) - 1, -1 do
    local other_period = 'd' .. day
    if other_period ~= period then
      local other_state, other_part = find_in(evaluations, other_period, field)
      if other_state then return other_state, other_part end
    end
  end
  return nil, part, is_new
end

-- A part must live as long as those with more digits, which are only searched when it is full. TTLs are spread over
-- minutes, since thousands of keys that expire in the same second delay other commands. A part of a present hour lives from
-- an hour after its end on, so that the writes before that need not renew it; see find_in for `is_new`.
local function write_evaluation(part, field, state, ttl_s, is_new)
  redis.call('HSET', part, field, state)
  local prefix, period, digits = part:match('^(.*:(d?%d+):)(%x+)$')
  local left_s = (tonumber(period) or 0) * 3600 + 7200 - now_ms() / 1000
  local is_present = left_s > 0 and left_s < DAY_S
  if is_present and not is_new then return end
  local part_ttl_s = math.ceil(ttl_s + (is_present and left_s or 0) + field:byte(1) * SPREAD_S / 256)
  for length = 2, #digits do redis.call('EXPIRE', prefix .. digits:sub(1, length), part_ttl_s) end
end
