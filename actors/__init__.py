"""Ray actors: what is remote. Every one calls into pkb and has no logic of its own."""
