"""Selects the environment variables of processes that run user code, or code that a specification names. Pure.

    subprocess.Popen(command, env=user_environment(os.environ, allowed))

The environment of a service has the keys of the store, tokens and the paths of TLS keys. User code gets the variables
that Python, PyTorch, CUDA and simulators need, and those that the operator adds (`allow.variables`).
"""

from collections.abc import Mapping

from podrace.limits.config import Allowed

NAMES = frozenset(
    (
        "PATH", "HOME", "USER", "LOGNAME", "LANG", "LANGUAGE", "TZ", "TMPDIR", "TERM", "DISPLAY", "XAUTHORITY",
        "VIRTUAL_ENV", "LD_LIBRARY_PATH", "SSL_CERT_FILE", "SSL_CERT_DIR", "ACCEPT_EULA", "PRIVACY_CONSENT",
        "EXP_PATH", "MPLCONFIGDIR",
    )
)  # fmt: skip
"""Variables that are passed on."""
PREFIXES = (
    "LC_", "PYTHON", "CUDA_", "CUPY_", "NVIDIA_", "NUMBA_", "JAX_", "XLA_", "UCX_", "OMP_", "KMP_", "MKL_",
    "OPENBLAS_", "NUMEXPR_", "TORCH_", "PYTORCH_", "TRITON_", "WARP_", "NCCL_", "GRPC_", "MUJOCO_", "PYOPENGL_",
    "EGL_", "VK_", "XDG_", "ALE_", "CONDA_", "OMNI_", "ISAAC", "CARB_", "MALLOC_", "__EGL_", "__GLX_", "SDL_",
    "COVERAGE_",
)  # fmt: skip
"""Beginnings of variables that are passed on."""
STORE_PREFIXES = ("PODRACE_STORE_",)
"""Beginnings of variables that only the leader of a pod gets: it alone has access to the checkpoint store."""
TOKEN_PREFIXES = ("PODRACE_TOKEN", "PODRACE_AGENTPOD__TOKEN", "PODRACE_AGENTPOD__KEY")
"""Beginnings of variables with tokens, of people and of pods. A pod gets its token with its settings."""
CLOUD_PREFIXES = ("MINIO_", "AWS_")
"""As STORE_PREFIXES; but where everything is allowed, user code gets the user's own access to a cloud as well."""
TLS_PREFIX = "PODRACE_TLS_"
"""Beginning of the variables with the paths of certificate and key, for roles that call services."""
SECRETS = ("TOKEN", "SECRET", "PASSWORD", "PASSWD", "CREDENTIAL", "_KEY", "APIKEY")
"""Parts of names that are never passed on, unless the operator lists the variable."""
OWN = "PODRACE_"
"""Beginning of the variables of podrace, which are not passed on."""
INTERPRETERS = ("PODRACE_ISAACGYM_PYTHON", "PODRACE_ISAACLAB_PYTHON")
"""Variables of podrace that are passed on: the process may make an environment of Isaac Gym or Isaac Lab."""


def user_environment(environ: Mapping[str, str], allowed: Allowed) -> dict[str, str]:
    """Returns the variables for a process with user code.

    With `allow.everything` these are all but those of podrace: the code belongs to the user of this process.

    Args:
        environ: The environment of this process.
        allowed: What the operator allows.
    """
    return {name: value for name, value in environ.items() if _is_passed(name, allowed)}


def _is_passed(name: str, allowed: Allowed) -> bool:
    if name.startswith(OWN):
        return name in INTERPRETERS
    if allowed.everything or any(_matches(name, entry) for entry in allowed.variables):
        return True
    return (name in NAMES or name.startswith(PREFIXES)) and not any(part in name.upper() for part in SECRETS)


def _matches(name: str, entry: str) -> bool:
    return name.startswith(entry[:-1]) if entry.endswith("*") else name == entry


def role_environment(environ: Mapping[str, str], allowed: Allowed) -> dict[str, str]:
    """Returns the variables for all roles of a pod: workers and evaluators run simulators of users."""
    tls = {name: value for name, value in environ.items() if name.startswith(TLS_PREFIX)}
    passed, withheld = user_environment(environ, allowed), leader_variables(environ, allowed)
    return {name: value for name, value in passed.items() if name not in withheld} | tls


def leader_variables(environ: Mapping[str, str], allowed: Allowed) -> dict[str, str]:
    """Returns the variables that only the leader of a pod gets."""
    prefixes = STORE_PREFIXES if allowed.everything else (*STORE_PREFIXES, *CLOUD_PREFIXES)
    return {name: value for name, value in environ.items() if name.startswith(prefixes)}
