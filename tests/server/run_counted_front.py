"""A front that tells how many tasks and objects it has: `python run_counted_front.py CONFIG`."""

import asyncio
import gc
import sys
from typing import Any
from unittest.mock import patch

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from engine.front.app import private_app
from engine.front.main import main
from tests.server.run_front import FAKE_WORKER


async def tasks(request: Request) -> Response:
    gc.collect()
    return JSONResponse({"tasks": len(asyncio.all_tasks()), "objects": len(gc.get_objects())})


def counted_app(*arguments: Any) -> Any:
    app: Any = private_app(*arguments)
    app.app.router.routes.append(Route("/control/tasks", tasks, methods=["POST"]))
    return app


if __name__ == "__main__":
    with patch("engine.front.app.private_app", counted_app):
        sys.exit(main(sys.argv[1:], FAKE_WORKER))
