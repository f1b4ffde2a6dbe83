"""A griffe extension that adds the constructor arguments of Equinox modules, which their source does not contain."""

from __future__ import annotations

import inspect
import operator
from typing import Any

import equinox
import griffe

import pilescore


class ModuleSignatures(griffe.Extension):
    """Adds the run-time `__init__` to every public Equinox module, with the annotations of its fields."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Add constructors to the public classes of the package."""
        if pkg.path != "pilescore":
            return
        names = [*pilescore.__all__, *(f"kernels.{name}" for name in pilescore.kernels.__all__)]
        for name in names:
            found = operator.attrgetter(name)(pilescore)
            if not (inspect.isclass(found) and issubclass(found, equinox.Module)):
                continue
            documented = pkg[name]
            target = documented.final_target if documented.is_alias else documented
            if "__init__" not in target.members:
                target.set_member("__init__", _initialiser(found, target))


def _initialiser(found: type, target: griffe.Class) -> griffe.Function:
    parameters = [griffe.Parameter("self", kind=griffe.ParameterKind.positional_or_keyword)]
    for parameter in inspect.signature(found).parameters.values():
        field = target.all_members.get(parameter.name)
        parameters.append(
            griffe.Parameter(
                parameter.name,
                annotation=getattr(field, "annotation", None),
                kind=griffe.ParameterKind[parameter.kind.name.lower()],
                default=None if parameter.default is parameter.empty else repr(parameter.default),
            )
        )
    return griffe.Function("__init__", parameters=griffe.Parameters(*parameters), parent=target)
