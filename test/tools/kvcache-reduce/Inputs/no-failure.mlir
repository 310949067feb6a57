kvcache.cache_group @full page_size 16
