"""Backups and exports of a cluster that went back to an older copy."""

import pytest

from backup import older
from gossipq.errors import ExportError
from gossipq_node.backup.backup import Backup, Pace
from gossipq_node.backup.folder import folder_at
from gossipq_node.export.exporter import Exporter
from gossipq_node.export.folder import Folder

#: the log is shorter than the one that was lost, longer, or as long
LOST_AND_SINCE = [(40, 10), (10, 40), (20, 20)]


@pytest.mark.parametrize(("lost", "since"), LOST_AND_SINCE)
def test_what_was_backed_up_of_what_is_gone_is_not_taken_for_what_is_there(tmp_path, restore, lost, since):
    def back_up(mq):
        with folder_at(str(tmp_path / "backup"), writes=True) as folder:
            return Backup(mq.admin.raw, folder, Pace(0), lambda done: None).run()

    root = tmp_path / "node"
    older.gone_back(root, back_up, lost)
    with older.running(root) as mq:
        older.publish(mq, "since", since)
        back_up(mq)
        expected = [message.value for message in mq.read("orders")]
    assert len(expected) == 5 + since
    again = restore()
    found = [message.value for message in again.read("orders")]
    assert found == expected


@pytest.mark.parametrize(("lost", "since"), LOST_AND_SINCE)
def test_an_export_does_not_go_on_behind_what_is_gone(tmp_path, lost, since):
    def export(mq):
        folder = Folder(tmp_path / "lake")
        try:
            return Exporter(mq, folder, ["orders"]).run()
        finally:
            folder.close()

    root = tmp_path / "node"
    older.gone_back(root, export, lost)
    with older.running(root) as mq:
        older.publish(mq, "since", since)
        with pytest.raises(ExportError, match=r"orders/\d (ends at|has another record)"):
            export(mq)
