"""All typed headers of the product, found by a walk over its modules, and values for their fields."""

import importlib
import pkgutil
from typing import Any

import broker
import namesrv
import remoting
from remoting.headers.fields import RequestHeader

PACKAGES = (remoting, namesrv, broker)


def header_classes() -> list[type[RequestHeader]]:
    """Every class made by `request_header` in the packages that speak the protocol, by name."""
    for package in PACKAGES:
        for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)
    # `dataclass(slots=True)` makes a second class of each: only that one has fields.
    found = [cls for cls in RequestHeader.__subclasses__() if "_fields" in vars(cls)]
    return sorted(found, key=lambda cls: cls.__name__)


def sample_of(header_class: type[RequestHeader]) -> RequestHeader:
    """A header with a value in every field."""
    values: dict[type, Any] = {int: 7, bool: True, str: "LOWER"}
    return header_class(*[values[field.type] for field in header_class._fields])
