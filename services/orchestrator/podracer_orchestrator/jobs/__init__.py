"""Jobs: rows and states, the plan from the spec, files and founders, listing."""
