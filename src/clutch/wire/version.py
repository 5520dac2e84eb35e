"""The release of this code, said by every side to the other."""

VERSION = "0.1.0"
