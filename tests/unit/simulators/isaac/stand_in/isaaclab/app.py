"""The application, which has to run before anything else is imported."""

RUNNING = []


class AppLauncher:
    """Starts it."""

    def __init__(self, launcher_args=None, **kwargs):
        assert kwargs["headless"] is True
        RUNNING.append(self)
        self.app = self
