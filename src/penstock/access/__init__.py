"""Authentication and authorisation: proofs of identity and permission rules; no sockets and no cluster state.

| module         | contents                                                      |
|----------------|---------------------------------------------------------------|
| `users`        | users, their credentials and quotas                           |
| `rules`        | rules: what they allow, and on which streams                  |
| `scram`        | passwords and tokens: a proof that does not reveal the secret |
| `nkeys`        | NATS nkeys: a signature                                       |
| `handshake`    | login state machines of the broker and of the client          |
| `credentials`  | the client's credentials and their proofs                     |
| `secret_files` | file modes that a file with a secret may have                 |
"""

from penstock.access.rules import Operation, Rule
from penstock.access.users import Credential, CredentialKind, Quotas, User

__all__ = ["Credential", "CredentialKind", "Operation", "Quotas", "Rule", "User"]
