"""Leaves malformed HTTP requests out of the log: aiohttp writes a traceback for each, and anyone can send them."""

import logging

from aiohttp.http_exceptions import HttpProcessingError


class _Malformed(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a record is about anything but a request that is not HTTP."""
        return not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError))


def http_logger() -> logging.Logger:
    """Returns the logger of an HTTP server, for `aiohttp.web.AppRunner(..., logger=...)`."""
    logger = logging.getLogger("podrace.http")
    if not logger.filters:
        logger.addFilter(_Malformed())
    return logger
