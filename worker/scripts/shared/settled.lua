-- Whether ingest is done with an entry of the stream: delivered and not pending. It stands behind choosing.lua and
-- entry_ids.lua, and has their KEYS, plan and functions:
--
-- KEYS[1] traces           stream, group plan.group; only looked at
local function last_delivered()
  if redis.call('EXISTS', KEYS[1]) == 0 then return nil end
  for _, group in ipairs(redis.call('XINFO', 'GROUPS', KEYS[1])) do
    local state = {}
    for place = 1, #group, 2 do state[group[place]] = group[place + 1] end
    if state['name'] == plan.group then return state['last-delivered-id'] end
  end
  return nil
end

local delivered = last_delivered()

-- Chosen before ingest has decided, a trace that its rate would have chosen were a duplicate there, and missing in the
-- quality series.
local function settled(id)
  if not delivered or before(delivered, id) then return false end
  return #redis.call('XPENDING', KEYS[1], plan.group, id, id, 1) == 0
end
