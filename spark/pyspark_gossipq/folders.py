"""The folder of an export, with file names for Spark."""

import re

from gossipq import lakes

_PATTERN = re.compile(r"[][{}*?\\]")  #: characters of patterns in Hadoop's paths


class Folder(lakes.ExportReader):
    def address(self, path: str) -> str:
        """Return the name of a file for Spark, with pattern characters escaped."""
        return _PATTERN.sub(r"\\\g<0>", f"{self.path}/{path}")

    @property
    def by_python(self) -> bool:
        """True for s3://, which is read through pyarrow; s3a:// needs the
        jars of Spark's connector.
        """
        return self.path.startswith("s3://")
