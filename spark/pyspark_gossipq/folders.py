"""An export's folder, with the names that Spark reads its files by."""

import re

from gossipq import lakes

_PATTERN = re.compile(r"[][{}*?\\]")  #: what patterns of Hadoop's paths are made of


class Folder(lakes.Folder):
    def address(self, path: str) -> str:
        """A file as Spark reads it: by a pattern, unless that is escaped; S3 by Spark's own connector."""
        return _PATTERN.sub(r"\\\g<0>", re.sub("^s3n?://", "s3a://", f"{self.path}/{path}"))
