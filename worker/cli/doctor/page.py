"""The worker's own page: whether its secret and certificate are there, and whether others may read it."""

from collections.abc import Mapping, Sequence

from worker.access import Access, tls_context
from worker.cli.doctor.finding import Finding, broken, ok, warning
from worker.serving import LOOPBACK
from worker.settings import Settings, SettingsError

__all__ = ["page"]


def page(settings: Settings, environment: Mapping[str, str]) -> Sequence[Finding]:
    """Read the secret and the certificate as a worker would."""
    try:
        access, tls = Access.of(settings, environment), tls_context(settings)
    except SettingsError as error:
        what, _, mend = f"{error}".partition("; ")
        return [broken("metrics page", what, mend or "correct it in the configuration")]
    if access.scheme is None and settings.metrics_host not in LOOPBACK:
        mend = "set metrics_token_env, or keep others away by the network's rules"
        return [warning("metrics page", f"anyone who reaches {settings.metrics_host} may read it", mend)]
    return [ok("metrics page", f"{access.scheme or 'open on the loopback'}{', TLS' if tls else ''}")]
