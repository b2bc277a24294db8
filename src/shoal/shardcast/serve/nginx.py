"""nginx configuration that serves a store: the same files and URLs, without long polling."""

from pathlib import Path

from shoal.errors import ShardcastError

CONFIG = """\
# Serves the Shoal store {store}
# shoal relay --no-serve keeps the store up to date; nginx hands it out. Test with: nginx -t -c {file}
worker_processes auto;
pid {state}/nginx.pid;
error_log {state}/error.log warn;
events {{ worker_connections 4096; }}
http {{
  access_log off;
  sendfile on;
  sendfile_max_chunk 2m;
  tcp_nopush on;
  server_tokens off;
  types {{ }}
  default_type application/octet-stream;
  client_body_temp_path {state}/body; proxy_temp_path {state}/proxy; fastcgi_temp_path {state}/fastcgi;
  uwsgi_temp_path {state}/uwsgi; scgi_temp_path {state}/scgi;
  client_header_timeout 10s; client_body_timeout 10s; send_timeout 15s; keepalive_timeout 30s;
  keepalive_requests 100000;
  client_max_body_size 1k; large_client_header_buffers 4 4k;
  reset_timedout_connection on;
  limit_conn_zone $binary_remote_addr zone=connections:10m;
  limit_req_zone $binary_remote_addr zone=requests:10m rate=500r/s;
  server {{
    listen {host}:{port} backlog=1024;
    root {store};
    autoindex off;
    disable_symlinks on from=$document_root;
    limit_conn connections 128;
    limit_req zone=requests burst=1000 nodelay;
    if ($request_method !~ "^(GET|HEAD)$") {{ return 405; }}
    etag off;
    open_file_cache off;
    location = /head.json {{ add_header Cache-Control no-cache; }}
    location ~ "^/[0-9]{{6,9}}-(full|delta)-[0-9a-f]{{16}}/manifest\\.jsonl$" {{ add_header Cache-Control no-cache; }}
    location ~ "^/[0-9]{{6,9}}-(full|delta)-[0-9a-f]{{16}}/files/[A-Za-z0-9_]" {{ }}
    location / {{ return 404; }}
  }}
}}
"""


def nginx_config(store: Path, file: Path, host: str, port: int) -> str:
    """What to write to `file`; nginx's own state stands beside it."""
    for path in (store, file):
        if any(sign in str(path.absolute()) for sign in " \t\n\"';{}$#\\"):
            raise ShardcastError(
                f"{path}: nginx does not accept a path with spaces, quotes or characters of its own syntax"
            )
    listen = f"[{host}]" if ":" in host else host
    return CONFIG.format(
        store=store.absolute(), file=file.absolute(), state=file.absolute().parent, host=listen, port=port
    )
