"""The application, which must run before anything else is imported."""

RUNNING = []


class AppLauncher:
    """Starts the application."""

    def __init__(self, launcher_args=None, **kwargs):
        assert kwargs["headless"] is True
        RUNNING.append(self)
        self.app = self
