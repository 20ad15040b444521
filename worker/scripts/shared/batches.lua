-- Write a batch: it stands in the ready set of its judge model, and counts among what waits.
--
-- keys.batch, keys.leases, keys.ready, keys.waiting   its places
-- batch                                               id, made_at_ms and judge_model
-- due                                                 when it is looked at again, should the ready set be lost, in ms
local function write_batch(keys, batch, payload, due)
  redis.call('SET', keys.batch, payload)
  redis.call('ZADD', keys.leases, due, batch.id)
  redis.call('ZADD', keys.ready, batch.made_at_ms, batch.id)
  redis.call('HINCRBY', keys.waiting, batch.judge_model, #payload)
end
