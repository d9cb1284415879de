"""Fixtures of the tests of `torch-ccl run`."""

import pytest
from support.mpi_hosts import write_ssh
from support.run_command import SCRIPT_HEADER, started
from support.virtual_hosts import virtual_hosts


@pytest.fixture
def script(tmp_path):
    """script(text) is the path of a script for ranks."""

    def write(text: str) -> str:
        path = tmp_path / "script.py"
        path.write_text(SCRIPT_HEADER + text)
        return str(path)

    return write


@pytest.fixture(scope="module")
def hosts(tmp_path_factory):
    with virtual_hosts(2) as hosts:
        hosts[0].ssh = tmp_path_factory.mktemp("ssh") / "ssh"
        write_ssh(hosts[0].ssh, hosts)
        yield hosts


@pytest.fixture
def over_hosts(hosts, tmp_path):
    """over_hosts(...): like `started`, but on the first virtual host, with a substitute for ssh."""

    def start(*words: str, **environment: str):
        return started(
            tmp_path,
            "--hosts",
            "h1,h2",
            *words,
            host=hosts[0],
            CCL_RSH=str(hosts[0].ssh),
            **environment,
        )

    return start
