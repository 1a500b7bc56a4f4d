"""A broker for all tests of a module, and folders that are closed."""

import pytest

from gossipq_client import testing


@pytest.fixture(scope="module")
def broker():
    with testing.Broker() as broker:
        yield broker


@pytest.fixture
def mq(broker):
    with broker.connect() as mq:
        yield mq
        for info in mq.topics():
            mq.topic(info.name).delete()


@pytest.fixture
def open_folder(tmp_path):
    """open_folder() is the folder of the test's export, opened once more: the one before is closed."""
    from gossipq_node.export.folder import Folder

    opened = []

    def open_it(name="out"):
        while opened:
            opened.pop().close()
        opened.append(Folder(tmp_path / name))
        return opened[-1]

    yield open_it
    while opened:
        opened.pop().close()
