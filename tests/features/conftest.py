"""One version of Redis for the stages of features: the newer one runs those of the core, and whole workers."""

from support.fixtures import one_redis

any_redis_server = one_redis
