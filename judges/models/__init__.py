"""Chat models that judge: one file per provider, found through ``judges.models.registry``."""
