"""Where samples come from, and in which order."""

from shoal.data import augment
from shoal.data.columns import select
from shoal.data.digits import digits
from shoal.data.draws import Draws
from shoal.data.source import Source, open_source
from shoal.data.streams import stream
from shoal.data.transforms import Rowwise, transform

__all__ = ["Draws", "Rowwise", "Source", "augment", "digits", "open_source", "select", "stream", "transform"]
