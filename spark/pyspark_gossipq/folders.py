"""An export's folder, with the names that Spark reads its files by."""

import re

from gossipq import lakes

_PATTERN = re.compile(r"[][{}*?\\]")  #: what patterns of Hadoop's paths are made of


class Folder(lakes.ExportReader):
    def address(self, path: str) -> str:
        """A file as Spark reads it: by a pattern, unless that is escaped."""
        return _PATTERN.sub(r"\\\g<0>", f"{self.path}/{path}")

    @property
    def by_python(self) -> bool:
        """Spark has no name for it: s3:// is read through pyarrow, s3a:// by Spark's own connector, whose
        jars one brings."""
        return self.path.startswith("s3://")
