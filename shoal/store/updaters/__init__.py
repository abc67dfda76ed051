"""What a server does with what is pushed: assign, add, sgd, adam, average, and your own by name."""

from shoal.store.updaters.adam import Adam
from shoal.store.updaters.add import Add
from shoal.store.updaters.assign import Assign
from shoal.store.updaters.average import Average
from shoal.store.updaters.base import Updater, make_updater, updaters
from shoal.store.updaters.elementwise import ElementWise
from shoal.store.updaters.sgd import SGD

__all__ = ["SGD", "Adam", "Add", "Assign", "Average", "ElementWise", "Updater", "make_updater", "updaters"]
