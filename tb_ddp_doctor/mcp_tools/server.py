"""The tools as a server of the Model Context Protocol, by the package `mcp`: over stdio, or HTTP on loopback."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, get_type_hints

import anyio
import msgspec
from mcp import types
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server

from tb_ddp_doctor.discover.runs import DiscoverError
from tb_ddp_doctor.engine import RunError
from tb_ddp_doctor.known_type import known
from tb_ddp_doctor.mcp_tools.answers import PageOfRows, Sliced
from tb_ddp_doctor.mcp_tools.questions import ToolArguments
from tb_ddp_doctor.mcp_tools.toolbox import Toolbox
from tb_ddp_doctor.mcp_tools.wrapping import NOTE, data
from tb_ddp_doctor.memory_runs import NoSnapshotError
from tb_ddp_doctor.slices.model import SliceError
from tb_ddp_doctor.stuck.run import StuckError
from tb_ddp_doctor.version import __version__
from tb_ddp_doctor.workers.pool import CrashError

INSTRUCTIONS = (
    "Says why distributed PyTorch training is slow, from profiler traces of all ranks. Begin with list_runs, then "
    "diagnose; get_finding has the proof and the fix, slice the events themselves. Every number has its unit and "
    "meaning in `definitions`; report numbers as they are. Pages: pass next_offset as offset. "
) + NOTE
#: The loopback address: nobody else on the network can ask.
_HOST = "127.0.0.1"
#: The names of tools, in the order in which they are listed.
NAMES = (
    "list_runs", "diagnose", "get_finding", "ranks_and_steps", "what_if", "plan", "compare", "history", "collectives",
    "stuck", "memory", "slice", "explain",
)  # fmt: skip
#: What a question ends with that cannot be answered: a sentence for users.
_SAID = (ValueError, OSError, RunError, DiscoverError, SliceError, StuckError, NoSnapshotError, CrashError)


@dataclass(frozen=True)
class Tool:
    """A tool: a method of the toolbox, with the types of its question and answer."""

    name: str
    method: Callable[[Any], PageOfRows]
    question: type[ToolArguments]
    answer: type[PageOfRows]

    @classmethod
    def of(cls, toolbox: Toolbox, name: str) -> Tool:
        method = getattr(toolbox, name)
        hints = get_type_hints(method)
        return cls(name, method, hints["asked"], hints["return"])

    def listed(self) -> types.Tool:
        """As a client sees it."""
        return types.Tool(
            name=self.name,
            title=self.name.replace("_", " "),
            description=" ".join((self.method.__doc__ or "").split()),
            input_schema=_schema(self.question),
            output_schema=_schema(self.answer),
            annotations=types.ToolAnnotations(
                read_only_hint=self.answer is not Sliced,
                destructive_hint=False,
                idempotent_hint=True,
                open_world_hint=False,
            ),
        )

    def called(self, arguments: Mapping[str, Any]) -> types.CallToolResult:
        """The answer as JSON text and as data, or an error in a sentence."""
        try:
            answer = self.method(msgspec.convert(dict(arguments), known(self.question)))
        except (*_SAID, msgspec.ValidationError) as error:
            return types.CallToolResult(content=[types.TextContent(text=data(str(error)))], is_error=True)
        return types.CallToolResult(
            content=[types.TextContent(text=msgspec.json.encode(answer).decode())],
            structured_content=msgspec.to_builtins(answer),
        )


def _schema(of: type[msgspec.Struct]) -> dict[str, Any]:
    """The JSON Schema of a type; the type itself stands at its top, as clients expect of an object."""
    (reference,), parts = msgspec.json.schema_components([of], ref_template="#/$defs/{name}")
    top = parts.pop(reference["$ref"].rpartition("/")[2])
    return {**top, "$defs": parts} if parts else top


def server(toolbox: Toolbox) -> Server[Any]:
    """The server; questions are answered one after the other, in a thread."""
    tools = {name: Tool.of(toolbox, name) for name in NAMES}
    turn = threading.Lock()

    async def list_tools(*_: Any) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[tool.listed() for tool in tools.values()])

    async def call_tool(_: Any, asked: types.CallToolRequestParams) -> types.CallToolResult:
        tool = tools.get(asked.name)
        if tool is None:
            said = f"There is no tool {asked.name!r}. There are: {', '.join(tools)}."
            return types.CallToolResult(content=[types.TextContent(text=data(said))], is_error=True)

        def answered() -> types.CallToolResult:
            with turn:
                return tool.called(asked.arguments or {})

        return await anyio.to_thread.run_sync(answered)

    return Server(
        "ddp-doctor", version=__version__, instructions=INSTRUCTIONS, on_list_tools=list_tools, on_call_tool=call_tool
    )


def serve_stdio(made: Server[Any]) -> None:
    """Serve the process that started this one, over its standard input and output, until it closes them."""

    async def run() -> None:
        async with stdio_server() as (reading, writing):
            await made.run(reading, writing, made.create_initialization_options())

    anyio.run(run)


def serve_http(made: Server[Any], port: int, started: Callable[[str], None]) -> None:
    """Serve this machine over HTTP until it is stopped; `started` is called with the address.

    Requests that name another host, as a page in a browser may send them, are refused (DNS rebinding).
    """
    import socket

    import uvicorn

    listening = socket.create_server((_HOST, port))
    app = made.streamable_http_app(host=_HOST)
    started(f"http://{_HOST}:{listening.getsockname()[1]}/mcp")
    uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[listening])
