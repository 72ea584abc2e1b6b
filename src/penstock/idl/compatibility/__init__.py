"""Breaking changes between two versions of a contract.

Rules: pure; reads linked programs only, whose types and constants have limits. Types are compared as the wire has them,
through typedefs and includes; names of types, fields and arguments are not on the wire of Thrift, names of methods,
scopes and operations are. A change that no rule names is safe: a comment, another order.

Versions run side by side while services are updated, and a stream keeps messages of old versions, so a rule says which
side fails:

| impact     | fails                                                                                     |
|------------|-------------------------------------------------------------------------------------------|
| `BACKWARD` | new code, with what old code wrote: stored messages, old publishers, calls of old clients |
| `FORWARD`  | old code, with what new code writes: new publishers, answers of new servers               |
| `SOURCE`   | programs that use the generated code, until they are edited; the wire stays the same      |
| `NOTHING`  | nothing, but both versions do not behave alike: a note                                    |

`RULES` is the list. What Frugal's audit calls an error breaks the wire here, too, with two exceptions whose bytes
stay the same: a type that only has another name, and a service that has all its methods through another base.

| module       | content                                                                                   |
|--------------|-------------------------------------------------------------------------------------------|
| `rules`      | `RULES`; `Change`, and `breaking`: those that a mode refuses                              |
| `comparison` | `compare`, `compare_types`, `compare_all`                                                 |
| `versions`   | which declarations of two programs are versions of one                                    |
| `types`      | types where they are used, and typedefs                                                   |
| `structs`    | structs, and lists of fields                                                              |
| `enums`      | enums                                                                                     |
| `constants`  | constants                                                                                 |
| `scopes`     | scopes, their streams and keys                                                            |
| `services`   | services and methods                                                                      |
| `protobuf`   | oneofs, reserved numbers and names, names in JSON                                         |
| `text`       | names and types in the texts of changes                                                   |
"""

from penstock.idl.compatibility.comparison import Against, compare, compare_all, compare_types
from penstock.idl.compatibility.rules import RULES, Change, Impact, Mode, Rule, breaking

__all__ = [
    "RULES",
    "Against",
    "Change",
    "Impact",
    "Mode",
    "Rule",
    "breaking",
    "compare",
    "compare_all",
    "compare_types",
]
