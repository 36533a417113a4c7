"""Settings of the tutorial's server."""

from pathlib import Path


def resolve_workspace(launch_cwd: Path) -> Path:
    """Kernels work in data/ beside this directory, wherever below it the server was started."""
    workspace = Path(__file__).parent.parent / "data"
    workspace.mkdir(exist_ok=True)
    return workspace


named_activity_timeout_seconds = 7 * 86_400  # a named kernel waits a week for its next client
