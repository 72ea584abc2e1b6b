"""Without the extras: what works, and what the errors say."""

import subprocess
import sys

PROGRAM = """
import sys
sys.modules["thrift"] = sys.modules["opentelemetry"] = None
from penstock.base.errors import OperationalError
from penstock.frugal import client, http_transport, nats_transport, server
from penstock.frugal.codecs import BINARY, COMPACT, JSON, ApplicationException, struct_spec
from penstock.frugal.shipped import tracing

spec = struct_spec(ApplicationException)
said = ApplicationException("a", 6)
assert JSON.decode_bare(JSON.encode_bare(spec, said), spec) == said
for use in (
    lambda: BINARY.encode_bare(spec, said),
    lambda: COMPACT.decode_bare(b"", spec),
    lambda: tracing.trace(),
):
    try:
        use()
    except OperationalError as error:
        print(error)
"""


def test_errors_say_which_extra_is_missing():
    ran = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=60)
    binary, compact, traces = ran.stdout.splitlines()
    assert binary == compact
    assert "Apache thrift is not installed" in binary
    assert "[frugal]" in binary
    assert "OpenTelemetry is not installed" in traces
    assert "[otel]" in traces
