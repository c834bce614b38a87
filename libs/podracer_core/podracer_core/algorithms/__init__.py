"""Learning algorithms over a cohort. This file imports nothing: `cohort` and `registry` stay light."""
