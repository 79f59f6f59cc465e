"""Models that thalweg has no family for, served through transformers' own modules on the paged step. An optional room: it is
entered where transformers is installed and a class has attention that can be exchanged."""
