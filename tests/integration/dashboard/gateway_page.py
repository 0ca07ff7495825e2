"""Makes requests to a gateway as a page of the dashboard does."""

from dataclasses import dataclass
from typing import Any

import aiohttp

NAME = "run-abc123"


@dataclass
class Page:
    """Requests of a browser that has opened the URL with the token."""

    session: aiohttp.ClientSession
    url: str
    """URL with the token."""
    origin: str

    async def get(self, path: str, status: int = 200, **query: Any) -> Any:
        """Returns the JSON of an answer with an expected status."""
        async with self.session.get(f"{self.origin}/api/{path}", params=query) as response:
            assert response.status == status, await response.text()
            return await response.json()

    async def post(self, path: str, body: Any, status: int = 200, headers: dict[str, str | None] | None = None) -> Any:
        """Sends a change as a page of the dashboard does; a header that is None is not sent."""
        change = (await self.get("session"))["change"]
        own: dict[str, str | None] = {"Origin": self.origin, "X-Podrace-Change": change, **(headers or {})}
        sent = {name: value for name, value in own.items() if value is not None}
        async with self.session.post(f"{self.origin}/api/{path}", json=body, headers=sent) as response:
            assert response.status == status, await response.text()
            return await response.json()
