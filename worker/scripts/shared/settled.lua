-- Whether ingest is done with an entry of the stream: delivered and not pending. It stands behind choosing.lua,
-- entry_ids.lua and delivered.lua, and has their KEYS, plan and functions:
--
-- KEYS[1] traces           stream, group plan.group; only looked at
local delivered = last_delivered(KEYS[1], plan.group)

-- Chosen before ingest has decided, a trace that its rate would have chosen were a duplicate there, and missing in the
-- quality series.
local function settled(id)
  if not delivered or before(delivered, id) then return false end
  return #redis.call('XPENDING', KEYS[1], plan.group, id, id, 1) == 0
end
