-- The last entry of a stream that a group's readers were given; nil without stream or group.
local function last_delivered(stream, wanted)
  if redis.call('EXISTS', stream) == 0 then return nil end
  for _, group in ipairs(redis.call('XINFO', 'GROUPS', stream)) do
    local state = {}
    for place = 1, #group, 2 do state[group[place]] = group[place + 1] end
    if state['name'] == wanted then return state['last-delivered-id'] end
  end
  return nil
end
