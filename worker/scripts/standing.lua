-- Tell where the readers of both streams stand, and which batch waits longest for each judge model. Reads only, and
-- sends no payload anywhere.
--
-- KEYS[1] traces        stream
-- KEYS[2] verdicts      stream
-- KEYS[3..] ready:<judge model>   sorted sets of batches that nobody holds
-- ARGV[1] the group of the first stream · ARGV[2..] groups of the second
-- Returns for each group, and then for each judge model, a mark that changes when something is taken; '' where nothing
-- waits to be.
local function pairs_of(list)
  local result = {}
  for place = 1, #list, 2 do result[list[place]] = list[place + 1] end
  return result
end

local function marks_of(stream)
  local marks = {}
  if redis.call('EXISTS', stream) == 0 then return marks end
  for _, group in ipairs(redis.call('XINFO', 'GROUPS', stream)) do
    group = pairs_of(group)
    local delivered = group['last-delivered-id']
    -- Not by the stream's last id: what came last may have been trimmed away.
    local waits = #redis.call('XRANGE', stream, '(' .. delivered, '+', 'COUNT', 1) > 0
    marks[group['name']] = waits and delivered or ''
  end
  return marks
end

local of_traces, of_verdicts = marks_of(KEYS[1]), marks_of(KEYS[2])
local marks = {of_traces[ARGV[1]] or ''}
for place = 2, #ARGV do marks[#marks + 1] = of_verdicts[ARGV[place]] or '' end
for place = 3, #KEYS do marks[#marks + 1] = redis.call('ZRANGE', KEYS[place], 0, 0)[1] or '' end
return marks
