"""What the scripts in ops/ share: reading upstream's sources (scan_*, shape_form), asking pytest (collect_tests), which trees
(targets), and the files kept here (join_inventory, shape_sets, shape_uses). Nothing here is called by hand."""
