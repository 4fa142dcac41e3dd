package httpboot

import (
	"net/http"

	"firstlight/site/internal/discovery"
)

// metered tells of every answer after its end: which kind of file, which status, how many bytes of body.
func metered(next http.Handler, tell func(file string, status int, bytes int64)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := &counter{ResponseWriter: w}
		next.ServeHTTP(c, r)
		if c.status == 0 {
			c.status = http.StatusOK
		}
		tell(class(r.URL.Path), c.status, c.n)
	})
}

// class is the kind of file that a path asks for, a word of a short list whatever the path.
func class(path string) string {
	parts, err := SplitPath(path)
	if err != nil || len(parts) < 2 {
		return "other"
	}
	kinds := map[string]string{
		discovery.ScriptFile: "script", discovery.SiteFile: "site", discovery.BootFile: "boot",
		discovery.ReportPath: "report", discovery.FailedPath: "report",
	}
	switch {
	case parts[0] == "f" && parts[1] == discovery.KernelFile:
		return "kernel"
	case parts[0] == "f" && parts[1] == discovery.RAMDiskFile:
		return "ramdisk"
	case parts[0] == "blob" && isDigest(parts[1]):
		return "image"
	case len(parts) < 3 || parts[0] != "b" && parts[0] != "m":
		return "other"
	case kinds[parts[2]] != "":
		return kinds[parts[2]]
	case len(parts) == 3:
		return "firmware"
	}
	return "other"
}
